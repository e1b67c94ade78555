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

const client = new Client(
  { name: "interop", version: "1.0.0" },
  { versionNegotiation: { mode: "auto" }, capabilities: {} },
);
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
};
await client.close();
console.log(JSON.stringify(facts));
