// The library on the official TypeScript SDK 1.x: a server of the session era.
//
//     node reference_ts1.mjs NODE_MODULES stdio
//     node reference_ts1.mjs NODE_MODULES http PORT
//
// An McpServer serves one session here, so the café opens for the session whose reader turns the sign.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";
import * as shelves from "./shelves.mjs";

const [modules, kind, port] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${modules}/${file}`).href);
const sdk = (file) => load(`@modelcontextprotocol/sdk/dist/esm/${file}`);
const { McpServer, ResourceTemplate } = await sdk("server/mcp.js");
const { completable } = await sdk("server/completable.js");
const { StdioServerTransport } = await sdk("server/stdio.js");
const { StreamableHTTPServerTransport } = await sdk("server/streamableHttp.js");
const schemas = await sdk("types.js");
const { z } = await load("zod/index.js");

const { BOOKS, NOTICES, state, text } = shelves;
const subscribers = new Set();

async function progress({ _meta, sendNotification }, done, total, message) {
  if (_meta?.progressToken === undefined) return;
  const params = { progressToken: _meta.progressToken, progress: done, total, message };
  await sendNotification({ method: "notifications/progress", params });
}

async function takeAWhile(extra, before, after, inBetween = () => {}) {
  await progress(extra, 1, 2, before);
  inBetween();
  await shelves.sleep(300);
  await progress(extra, 2, 2, after);
}

function addPlainTools(server) {
  server.registerTool("add", { inputSchema: { a: z.number().int(), b: z.number().int() } }, ({ a, b }) => text(a + b));
  server.registerTool("greet", { inputSchema: { name: z.string() } }, ({ name }) => text(`Hello, ${name}!`));
  server.registerTool("lend", { inputSchema: { book_id: z.string() } }, ({ book_id: id }) =>
    BOOKS.has(id) ? text(`${BOOKS.get(id).title} is yours for three weeks.`) : shelves.failure(shelves.noSuchBook(id)),
  );
  server.registerTool("take_stock", {}, async (extra) => {
    for (const [index, { title }] of [...BOOKS.values()].entries()) {
      await progress(extra, index + 1, BOOKS.size, `Found ${title}`);
      await shelves.sleep(20);
    }
    return text(`${BOOKS.size} books, 0 of them lent.`);
  });
  server.registerTool("ring_back", {}, async (extra) => {
    await takeAWhile(extra, "Ringing back", "Rang back");
    return text("Here you are.");
  });
  server.registerTool("hang_up", {}, async (extra) => {
    await takeAWhile(extra, "Hanging up", "Hung up", () => extra.closeSSEStream?.());
    return text("Here you are again.");
  });
  server.registerTool("wait_at_desk", { inputSchema: { seconds: z.number() } }, async ({ seconds }, extra) => {
    await progress(extra, 0, seconds, "Waiting");
    return shelves.waitAtDesk(seconds, extra.signal);
  });
  server.registerTool("count_given_up_waits", {}, () => text(state.waitsGivenUp));
}

function addAskingTools(server) {
  const ask = (extra, method, params, schema) => extra.sendRequest({ method, params }, schema);
  server.registerTool("reserve", { inputSchema: { book_id: z.string() } }, async ({ book_id: id }, extra) => {
    if (!BOOKS.has(id)) return shelves.failure(shelves.noSuchBook(id));
    const params = { mode: "form", message: shelves.question(id), requestedSchema: shelves.RESERVATION };
    const { action, content } = await ask(extra, "elicitation/create", params, schemas.ElicitResultSchema);
    return text(shelves.slip(id, action === "accept" ? content : undefined));
  });
  server.registerTool("pay_fine", {}, async (extra) => {
    const params = { mode: "url", ...shelves.FINE, elicitationId: "fine-7" };
    const { action } = await ask(extra, "elicitation/create", params, schemas.ElicitResultSchema);
    if (action !== "accept") return text("The fine is still due.");
    const done = { method: "notifications/elicitation/complete", params: { elicitationId: "fine-7" } };
    await extra.sendNotification(done);
    return text("The page was opened.");
  });
  server.registerTool("sample", { inputSchema: { prompt: z.string() } }, async ({ prompt }, extra) => {
    const messages = [{ role: "user", content: { type: "text", text: prompt } }];
    const params = { messages, maxTokens: 100 };
    const said = await ask(extra, "sampling/createMessage", params, schemas.CreateMessageResultSchema);
    return text(said.content.text);
  });
  server.registerTool("roots", {}, async (extra) => {
    const { roots } = await ask(extra, "roots/list", {}, schemas.ListRootsResultSchema);
    return text(roots.map(({ uri }) => uri).join("\n"));
  });
}

function addTellingTools(server) {
  server.registerTool("announce", { inputSchema: { text: z.string() } }, async ({ text: words }, extra) => {
    for (const [level, data] of [["debug", `(${words})`], ["warning", words]]) {
      await server.sendLoggingMessage({ level, data }, extra.sessionId);
    }
    return text("Announced.");
  });
  server.registerTool("pin_notice", { inputSchema: { text: z.string() } }, async ({ text: words }) => {
    state.notices.push(words);
    for (const subscriber of subscribers) await subscriber.server.sendResourceUpdated({ uri: NOTICES });
    return text(`There are ${state.notices.length} notices now.`);
  });
  let coffee;
  server.registerTool("turn_cafe_sign", { inputSchema: { to: z.enum(["open", "closed"]) } }, ({ to }) => {
    if (to === "closed") coffee.remove();
    else coffee = server.registerTool("order_coffee", {}, () => text("1 coffee, coming."));
    return text(`The café is ${to}.`);
  });
}

function addResourcesAndPrompts(server) {
  const plain = { mimeType: "text/plain" };
  server.registerResource("notice_board", NOTICES, plain, () =>
    shelves.contents(NOTICES, "text/plain", state.notices.join("\n")),
  );
  server.registerResource("catalogue", "library://catalogue", plain, ({ href }) =>
    shelves.contents(href, "text/plain", shelves.catalogue()),
  );
  const complete = { book_id: (value) => shelves.starting(BOOKS.keys(), value) };
  const template = new ResourceTemplate("library://books/{book_id}", { list: undefined, complete });
  server.registerResource("one_book", template, { mimeType: "application/json" }, ({ href }, { book_id: id }) =>
    shelves.contents(href, "application/json", JSON.stringify(BOOKS.get(id))),
  );
  const genre = completable(z.string(), (value) => shelves.starting(shelves.GENRES, value));
  const argsSchema = { genre, mood: z.string().optional() };
  server.registerPrompt("recommend", { argsSchema }, (given) => shelves.recommendation(given));
}

function makeServer() {
  const capabilities = { logging: {}, resources: { subscribe: true } };
  const options = { instructions: shelves.INSTRUCTIONS, capabilities };
  const server = new McpServer({ name: "library", version: "1.0" }, options);
  for (const add of [addPlainTools, addAskingTools, addTellingTools, addResourcesAndPrompts]) add(server);
  server.server.setRequestHandler(schemas.SubscribeRequestSchema, () => (subscribers.add(server), {}));
  server.server.setRequestHandler(schemas.UnsubscribeRequestSchema, () => (subscribers.delete(server), {}));
  server.server.onclose = () => subscribers.delete(server);
  return server;
}

const sessions = new Map();

async function openSession() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new shelves.Events(),
    retryInterval: 100,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await makeServer().connect(transport);
  return transport;
}

async function serve(request, response) {
  const id = request.headers["mcp-session-id"];
  if (id && !sessions.has(id)) return response.writeHead(404).end();
  const transport = id ? sessions.get(id) : await openSession();
  return transport.handleRequest(request, response);
}

if (kind === "http") createServer(serve).listen(Number(port), "127.0.0.1");
else await makeServer().connect(new StdioServerTransport());
