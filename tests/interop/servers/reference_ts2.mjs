// The library on the official TypeScript SDK 2.x: a server of both eras.
//
//     node reference_ts2.mjs NODE_MODULES stdio
//     node reference_ts2.mjs NODE_MODULES http PORT
//
// A tool that asks returns its question and is called again, which the SDK serves in either era. Over HTTP the stateless
// era has a server for each request and the session era one for each session.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";
import * as shelves from "./shelves.mjs";

const [modules, kind, port] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${modules}/${file}`).href);
const sdk = await load("@modelcontextprotocol/server/dist/index.mjs");
const { serveStdio } = await load("@modelcontextprotocol/server/dist/stdio.mjs");
const { toNodeHandler } = await load("@modelcontextprotocol/node/dist/index.mjs");
const { z } = await load("zod/index.js");

const { inputRequired, inputResponse } = sdk;
const { BOOKS, NOTICES, state, text } = shelves;
const servers = new Set(); // those that have a client to tell
const subscribers = new Set();
let http; // the stateless era's, where its listeners are told

async function progress({ mcpReq }, done, total, message) {
  const progressToken = mcpReq._meta?.progressToken;
  if (progressToken === undefined) return;
  await mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress: done, total, message } });
}

async function takeAWhile(ctx, before, after, inBetween = () => {}) {
  await progress(ctx, 1, 2, before);
  inBetween();
  await shelves.sleep(300);
  await progress(ctx, 2, 2, after);
}

// A tool of `fields`; without any, the SDK would hand over the context alone.
const tool = (server, name, fields, run) => server.registerTool(name, { inputSchema: z.object(fields) }, run);

function addPlainTools(server) {
  tool(server, "add", { a: z.number().int(), b: z.number().int() }, ({ a, b }) => text(a + b));
  tool(server, "greet", { name: z.string() }, ({ name }) => text(`Hello, ${name}!`));
  tool(server, "lend", { book_id: z.string() }, ({ book_id: id }) =>
    BOOKS.has(id) ? text(`${BOOKS.get(id).title} is yours for three weeks.`) : shelves.failure(shelves.noSuchBook(id)),
  );
  tool(server, "take_stock", {}, async (_, ctx) => {
    for (const [index, { title }] of [...BOOKS.values()].entries()) {
      await progress(ctx, index + 1, BOOKS.size, `Found ${title}`);
      await shelves.sleep(20);
    }
    return text(`${BOOKS.size} books, 0 of them lent.`);
  });
  tool(server, "ring_back", {}, async (_, ctx) => {
    await takeAWhile(ctx, "Ringing back", "Rang back");
    return text("Here you are.");
  });
  tool(server, "hang_up", {}, async (_, ctx) => {
    await takeAWhile(ctx, "Hanging up", "Hung up", () => ctx.http?.closeSSE?.());
    return text("Here you are again.");
  });
  tool(server, "wait_at_desk", { seconds: z.number() }, async ({ seconds }, ctx) => {
    await progress(ctx, 0, seconds, "Waiting");
    return shelves.waitAtDesk(seconds, ctx.mcpReq.signal);
  });
  tool(server, "count_given_up_waits", {}, () => text(state.waitsGivenUp));
}

function addAskingTools(server) {
  const answer = ({ mcpReq }) => inputResponse(mcpReq.inputResponses, "question");
  const ask = (question) => inputRequired({ inputRequests: { question } });
  tool(server, "reserve", { book_id: z.string() }, ({ book_id: id }, ctx) => {
    if (!BOOKS.has(id)) return shelves.failure(shelves.noSuchBook(id));
    const { kind: asked, action, content } = answer(ctx);
    if (asked !== "missing") return text(shelves.slip(id, action === "accept" ? content : undefined));
    return ask(inputRequired.elicit({ message: shelves.question(id), requestedSchema: shelves.RESERVATION }));
  });
  tool(server, "pay_fine", {}, (_, ctx) => {
    const { kind: asked, action } = answer(ctx);
    if (asked === "missing") return ask(inputRequired.elicitUrl(shelves.FINE));
    return text(action === "accept" ? "The page was opened." : "The fine is still due.");
  });
  tool(server, "sample", { prompt: z.string() }, ({ prompt }, ctx) => {
    const { kind: asked, result } = answer(ctx);
    if (asked !== "missing") return text(result.content.text);
    const messages = [{ role: "user", content: { type: "text", text: prompt } }];
    return ask(inputRequired.createMessage({ messages, maxTokens: 100 }));
  });
  tool(server, "roots", {}, (_, ctx) => {
    const { kind: asked, roots } = answer(ctx);
    return asked === "missing" ? ask(inputRequired.listRoots()) : text(roots.map(({ uri }) => uri).join("\n"));
  });
}

function addTellingTools(server) {
  tool(server, "announce", { text: z.string() }, async ({ text: words }, { mcpReq }) => {
    await mcpReq.log("debug", `(${words})`);
    await mcpReq.log("warning", words);
    return text("Announced.");
  });
  tool(server, "pin_notice", { text: z.string() }, async ({ text: words }) => {
    state.notices.push(words);
    http?.notify.resourceUpdated(NOTICES);
    for (const subscriber of subscribers) await subscriber.server.sendResourceUpdated({ uri: NOTICES });
    return text(`There are ${state.notices.length} notices now.`);
  });
  tool(server, "turn_cafe_sign", { to: z.enum(["open", "closed"]) }, ({ to }) => {
    state.cafeIsOpen = to === "open";
    for (const each of servers) each.coffee[state.cafeIsOpen ? "enable" : "disable"](); // and it tells its client
    http?.notify.toolsChanged();
    return text(`The café is ${to}.`);
  });
  server.coffee = tool(server, "order_coffee", {}, () => text("1 coffee, coming."));
  if (!state.cafeIsOpen) server.coffee.disable();
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
  const template = new sdk.ResourceTemplate("library://books/{book_id}", { list: undefined, complete });
  server.registerResource("one_book", template, { mimeType: "application/json" }, ({ href }, { book_id: id }) =>
    shelves.contents(href, "application/json", JSON.stringify(BOOKS.get(id))),
  );
  const genre = sdk.completable(z.string(), (value) => shelves.starting(shelves.GENRES, value));
  const argsSchema = z.object({ genre, mood: z.string().optional() });
  server.registerPrompt("recommend", { argsSchema }, (given) => shelves.recommendation(given));
}

// `stays` says whether the server outlives the request that it is made for.
function makeServer(stays) {
  const capabilities = { logging: {}, tools: { listChanged: true }, resources: { subscribe: true } };
  const options = { instructions: shelves.INSTRUCTIONS, capabilities };
  const server = new sdk.McpServer({ name: "library", version: "1.0" }, options);
  for (const add of [addPlainTools, addAskingTools, addTellingTools, addResourcesAndPrompts]) add(server);
  server.server.setRequestHandler("resources/subscribe", () => (subscribers.add(server), {}));
  server.server.setRequestHandler("resources/unsubscribe", () => (subscribers.delete(server), {}));
  if (stays) servers.add(server);
  server.server.onclose = () => (servers.delete(server), subscribers.delete(server));
  return server;
}

const sessions = new Map();

async function openSession() {
  const transport = new sdk.WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new shelves.Events(),
    retryInterval: 100,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await makeServer(true).connect(transport);
  return transport;
}

async function fetch(request, options) {
  if (!(await sdk.isLegacyRequest(request, options?.parsedBody))) return http.fetch(request, options);
  const id = request.headers.get("mcp-session-id");
  if (id && !sessions.has(id)) return new Response(null, { status: 404 });
  const transport = id ? sessions.get(id) : await openSession();
  return transport.handleRequest(request, options);
}

if (kind === "http") {
  http = sdk.createMcpHandler(() => makeServer(false), { legacy: "reject" });
  createServer(toNodeHandler({ fetch })).listen(Number(port), "127.0.0.1");
} else {
  serveStdio(({ era }) => {
    const server = makeServer(true);
    if (era === "modern") subscribers.add(server); // whom it reaches is for its listen streams to say
    return server;
  });
}
