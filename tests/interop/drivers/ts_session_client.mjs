// Drives the library with the official TypeScript client 1.x, and prints what came of it as one line of JSON.
//
//     node ts_session_client.mjs SDK_PACKAGE http URL
//     node ts_session_client.mjs SDK_PACKAGE sse URL
//     node ts_session_client.mjs SDK_PACKAGE stdio COMMAND ARGUMENT...
//
// SDK_PACKAGE is the folder of @modelcontextprotocol/sdk. The steps are those of session_steps.py.

import { pathToFileURL } from "node:url";

const [folder, kind, target, ...args] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${folder}/dist/esm/${file}`).href);
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { SSEClientTransport } = await load("client/sse.js");
const { StdioClientTransport } = await load("client/stdio.js");
const schemas = await load("types.js");

const NOTICES = "library://notices";
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const textOf = (result) => result.content[0].text;

// Waits for what a notification brings, at most some seconds; whether it came is for the report to say.
async function until(condition) {
  for (let round = 0; round < 100 && !(await condition()); round += 1) await sleep(50);
}

async function errorOf(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { code: error.code, message: error.message };
  }
}

const person = { action: "accept", asked: [], logged: [], changes: [], completed: [] };

const client = new Client(
  { name: "interop", version: "1.0.0" },
  { capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } } },
);
client.setRequestHandler(schemas.ElicitRequestSchema, ({ params }) => {
  if (params.mode === "url") {
    person.asked.push(["url", params.message, params.url, Boolean(params.elicitationId)]);
    return { action: "accept" };
  }
  person.asked.push(["form", params.message, Object.keys(params.requestedSchema.properties).sort()]);
  const content = { reader: "Ada", day: "Saturday", weeks: 2 };
  return person.action === "accept" ? { action: "accept", content } : { action: person.action };
});
client.setRequestHandler(schemas.CreateMessageRequestSchema, ({ params }) => {
  person.asked.push(["sample", params.messages[0].content.text, params.maxTokens]);
  return { role: "assistant", content: { type: "text", text: "Come, all!" }, model: "interop" };
});
client.setRequestHandler(schemas.ListRootsRequestSchema, () => {
  person.asked.push(["roots"]);
  return { roots: [{ uri: "file:///home/ada" }] };
});
client.setNotificationHandler(schemas.LoggingMessageNotificationSchema, ({ params }) => {
  person.logged.push([params.level, params.data]);
});
client.setNotificationHandler(schemas.ResourceUpdatedNotificationSchema, ({ params }) => {
  person.changes.push(params.uri);
});
client.setNotificationHandler(schemas.ToolListChangedNotificationSchema, () => {
  person.changes.push("tools");
});
client.setNotificationHandler(schemas.ElicitationCompleteNotificationSchema, () => {
  person.completed.push("complete");
});

const call = (name, given = {}, options = undefined) =>
  client.callTool({ name, arguments: given }, undefined, options);

async function withProgress(tool) {
  const heard = [];
  const onprogress = ({ progress, total, message }) => heard.push([progress, total, message]);
  return { text: textOf(await call(tool, {}, { onprogress, timeout: 20000 })), heard };
}

// Gives a call up as soon as the server is known to be at work on it.
async function giveUp() {
  const count = async () => Number(textOf(await call("count_given_up_waits")));
  const before = await count();
  const abort = new AbortController();
  const options = { signal: abort.signal, onprogress: () => abort.abort("enough") };
  await errorOf(call("wait_at_desk", { seconds: 600 }, options));
  let after = before;
  await until(async () => (after = await count()) !== before);
  return { before, after };
}

async function ask() {
  const facts = {};
  for (const action of ["accept", "decline", "cancel"]) {
    person.action = action;
    facts[action] = textOf(await call("reserve", { book_id: "b1" }));
  }
  person.action = "accept";
  facts.url = textOf(await call("pay_fine"));
  facts.sample = textOf(await call("sample", { prompt: "Invite the town." }));
  facts.roots = textOf(await call("roots"));
  return { ...facts, asked: person.asked };
}

async function log() {
  await client.setLoggingLevel("info");
  await call("announce", { text: "We close soon." });
  await until(() => person.logged.length > 0);
  return person.logged;
}

// What is heard of three changes, what is read and listed upon hearing of them, and that it ends.
async function hearChanges() {
  const hears = (number) => until(() => person.changes.length === number);
  await client.subscribeResource({ uri: NOTICES });
  await call("pin_notice", { text: "Lost: one glove." });
  await hears(1);
  const board = (await client.readResource({ uri: NOTICES })).contents[0].text;
  const menus = [];
  for (const [index, to] of ["open", "closed"].entries()) {
    await call("turn_cafe_sign", { to });
    await hears(index + 2);
    menus.push((await client.listTools()).tools.some(({ name }) => name === "order_coffee"));
  }
  await client.unsubscribeResource({ uri: NOTICES });
  await call("pin_notice", { text: "Found: one glove." });
  await call("turn_cafe_sign", { to: "open" });
  await hears(4);
  await call("turn_cafe_sign", { to: "closed" });
  await hears(5);
  return { heard: person.changes, board, menus };
}

const transport =
  kind === "http"
    ? new StreamableHTTPClientTransport(new URL(target))
    : kind === "sse"
    ? new SSEClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args });
let version;
const setVersion = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (chosen) => {
  version = chosen; // the client tells its transport, and nobody else
  setVersion?.(chosen);
};
await client.connect(transport);

const tools = await client.listTools();
const hangsUp = tools.tools.some(({ name }) => name === "hang_up");
const facts = {
  version,
  server: client.getServerVersion(),
  capabilities: client.getServerCapabilities(),
  instructions: client.getInstructions(),
  ping: Object.keys(await client.ping()).length === 0,
  tools,
  resources: await client.listResources(),
  templates: await client.listResourceTemplates(),
  prompts: await client.listPrompts(),
  sum: await call("add", { a: 2, b: 3 }),
  greeting: await call("greet", { name: "Ada" }),
  tool_error: await call("lend", { book_id: "none" }),
  unknown_tool: await errorOf(call("no_such_tool")),
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
  progress: await withProgress("take_stock"),
  cancel: await giveUp(),
  asks: await ask(),
  logged: await log(),
  changes: await hearChanges(),
  ring_back: await withProgress("ring_back"),
  hang_up: hangsUp ? await withProgress("hang_up") : null,
  completed: person.completed,
};
if (kind === "http") await transport.terminateSession();
await client.close();
console.log(JSON.stringify(facts));
