// Drives the example server with the official TypeScript client, and prints what came of it as one line of JSON.
//
//     node ts_client.mjs CLIENT_PACKAGE http URL
//     node ts_client.mjs CLIENT_PACKAGE stdio COMMAND ARGUMENT...
//
// CLIENT_PACKAGE is the folder of @modelcontextprotocol/client, which lives outside the repository's tree of modules.

import { pathToFileURL } from "node:url";

const [folder, kind, target, ...args] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${folder}/dist/${file}`).href);
const { Client, StreamableHTTPClientTransport } = await load("index.mjs");
const { StdioClientTransport } = await load("stdio.mjs");

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function errorOf(promise) {
  try {
    await promise;
    return {};
  } catch (error) {
    return { code: error.code, message: error.message, data: error.data };
  }
}

async function progressOf(client) {
  const heard = [];
  const onprogress = ({ progress, total, message }) => heard.push([progress, total, message]);
  const result = await client.callTool({ name: "take_stock", arguments: {} }, { onprogress });
  return { heard, result };
}

// Gives a call up as soon as the server is known to be at work on it.
async function cancel(client) {
  const count = async () => (await client.callTool({ name: "count_given_up_waits", arguments: {} })).content[0].text;
  const before = await count();
  const abort = new AbortController();
  let cancelled = false;
  await client
    .callTool(
      { name: "wait_at_desk", arguments: { seconds: 600 } },
      { signal: abort.signal, onprogress: () => abort.abort("enough") },
    )
    .catch(() => (cancelled = true));
  let after = before;
  for (let round = 0; round < 100 && after === before; round += 1) {
    await sleep(50);
    after = await count();
  }
  return { before, after, cancelled };
}

const notices = "library://notices";
const person = { asked: [], action: "accept" };

async function ask(client) {
  const facts = {};
  for (const action of ["accept", "decline", "cancel"]) {
    person.action = action;
    facts[action] = await client.callTool({ name: "reserve", arguments: { book_id: "b1" } });
  }
  facts.invite = await client.callTool({ name: "invite", arguments: { book_id: "b5" } });
  return { ...facts, asked: person.asked };
}

// What is heard of three changes, and what is read and listed upon hearing of them.
async function listen(client) {
  const heard = [];
  client.setNotificationHandler("notifications/resources/updated", ({ params }) => heard.push(params.uri));
  client.setNotificationHandler("notifications/tools/list_changed", () => heard.push("ToolsListChanged"));
  const hears = async (number) => {
    for (let round = 0; round < 400 && heard.length < number; round += 1) await sleep(50);
  };
  const subscription = await client.listen({ toolsListChanged: true, resourceSubscriptions: [notices] });
  await client.callTool({ name: "pin_notice", arguments: { text: "Lost: one glove." } });
  await hears(1);
  const board = await client.readResource({ uri: notices });
  const menus = [];
  for (const [index, to] of ["open", "closed"].entries()) {
    await client.callTool({ name: "turn_cafe_sign", arguments: { to } });
    await hears(index + 2);
    menus.push((await client.listTools()).tools.some(({ name }) => name === "order_coffee"));
  }
  await subscription.close();
  return { heard, board, menus };
}

const client = new Client(
  { name: "interop", version: "1.0.0" },
  { versionNegotiation: { mode: "auto" }, capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} } },
);
client.setRequestHandler("elicitation/create", ({ params }) => {
  person.asked.push(["elicit", params.message, Object.keys(params.requestedSchema.properties).sort()]);
  const content = { reader: "Ada", day: "Saturday", weeks: 2 };
  return person.action === "accept" ? { action: "accept", content } : { action: person.action };
});
client.setRequestHandler("sampling/createMessage", ({ params }) => {
  person.asked.push(["sample", params.messages[0].content.text, params.maxTokens]);
  return { role: "assistant", content: { type: "text", text: "Come, all!" }, model: "interop" };
});
client.setRequestHandler("roots/list", () => {
  person.asked.push(["roots"]);
  return { roots: [{ uri: "file:///home/ada" }] };
});
const transport =
  kind === "http"
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args });
await client.connect(transport);

const facts = {
  version: client.getNegotiatedProtocolVersion?.(),
  server: client.getServerVersion(),
  capabilities: client.getServerCapabilities(),
  instructions: client.getInstructions(),
  tools: await client.listTools(),
  resources: await client.listResources(),
  templates: await client.listResourceTemplates(),
  prompts: await client.listPrompts(),
  sum: await client.callTool({ name: "add", arguments: { a: 2, b: 3 } }),
  books: await client.callTool({ name: "search_books", arguments: { genre: "mystery" } }),
  tool_error: await client.callTool({ name: "lend", arguments: { book_id: "none" } }),
  unknown_tool: await errorOf(client.callTool({ name: "no_such_tool", arguments: {} })),
  catalogue: await client.readResource({ uri: "library://catalogue" }),
  book: await client.readResource({ uri: "library://books/b3" }),
  unknown_resource: await errorOf(client.readResource({ uri: "library://nowhere" })),
  prompt: await client.getPrompt({ name: "recommend", arguments: { genre: "mystery" } }),
  genres: await client.complete({
    ref: { type: "ref/prompt", name: "recommend" },
    argument: { name: "genre", value: "m" },
  }),
  ids: await client.complete({
    ref: { type: "ref/resource", uri: "library://books/{book_id}" },
    argument: { name: "book_id", value: "b" },
  }),
  progress: await progressOf(client),
  cancel: await cancel(client),
  asks: await ask(client),
  changes: await listen(client),
};
await client.close();
console.log(JSON.stringify(facts));
