// The studio on the official TypeScript SDK 1.x with its experimental tasks: those of 2025-11-25.
//
//     node studio_ts1.mjs NODE_MODULES stdio
//     node studio_ts1.mjs NODE_MODULES http PORT
//
// It sends notifications/tasks/status on the stream that a session has open beside its requests (GET). It also sends
// questions as tasks to the client (`ask_as_task`). A cancelled task is not stopped.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [modules, kind, port] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${modules}/${file}`).href);
const sdk = (file) => load(`@modelcontextprotocol/sdk/dist/esm/${file}`);
const { McpServer } = await sdk("server/mcp.js");
const { StdioServerTransport } = await sdk("server/stdio.js");
const { StreamableHTTPServerTransport } = await sdk("server/streamableHttp.js");
const { InMemoryTaskStore, InMemoryTaskMessageQueue } = await sdk("experimental/tasks/stores/in-memory.js");
const schemas = await sdk("types.js");
const { z } = await load("zod/index.js");

const taskStore = new InMemoryTaskStore();
const taskMessageQueue = new InMemoryTaskMessageQueue();
const signals = new Map(); // by picture: how often it may go on, and who waits for that

const text = (value, more = {}) => ({ content: [{ type: "text", text: String(value) }], ...more });

function signal(picture) {
  if (!signals.has(picture)) signals.set(picture, { free: 0, waiting: [] });
  return signals.get(picture);
}

function goOn(picture) {
  const { waiting } = signal(picture);
  if (waiting.length > 0) waiting.shift()();
  else signal(picture).free += 1;
}

function waitForSignal(picture) {
  const found = signal(picture);
  if (found.free === 0) return new Promise((resolve) => found.waiting.push(resolve));
  found.free -= 1;
  return Promise.resolve();
}

const form = (name, schema) => ({ type: "object", properties: { [name]: schema }, required: [name] });
const WOOD = form("wood", { type: "string", enum: ["oak", "pine"] });

// What the work of a task can do: tell, and ask.
function workshop(taskId, extra) {
  const ask = async (method, params, schema) => {
    const answer = await extra.sendRequest({ method, params }, schema, { relatedTask: { taskId } });
    await extra.taskStore.updateTaskStatus(taskId, "working");
    return answer;
  };
  return {
    tell: (message) => extra.taskStore.updateTaskStatus(taskId, "working", message),
    elicit: (message, requestedSchema) =>
      ask("elicitation/create", { mode: "form", message, requestedSchema }, schemas.ElicitResultSchema),
    sample: (words) =>
      ask(
        "sampling/createMessage",
        { messages: [{ role: "user", content: { type: "text", text: words } }], maxTokens: 20 },
        schemas.CreateMessageResultSchema,
      ),
  };
}

const WORK = {
  develop: ({ photo }) => text(`${photo}, 10x15`, { structuredContent: { photo, size: "10x15" } }),
  async render({ picture }, { tell }) {
    const layers = [];
    for (const number of [1, 2]) {
      await tell(`painting (${number}/2)`);
      await waitForSignal(picture);
      layers.push(`${picture} ${number}`);
    }
    return text(layers.join(", "));
  },
  async dry({ picture }, { tell }) {
    for (const [index, word] of ["drying", "cooling"].entries()) {
      await tell(`${word} (${index + 1}/2)`);
      await waitForSignal(picture);
    }
    return text(`${picture} is dry.`);
  },
  async frame({ picture }, { elicit }) {
    const { action, content } = await elicit(`Which wood for ${picture}?`, WOOD);
    return text(action === "accept" ? `${picture} in ${content.wood}` : `${picture} without a frame`);
  },
  async hang({ picture }, { elicit }) {
    const at = await elicit("At which height?", form("height", { type: "integer" }));
    const on = await elicit("On which wall?", form("wall", { type: "string" }));
    return text(`${picture} at ${at.content.height} cm on the ${on.content.wall} wall`);
  },
  name_it: async ({ picture }, { sample }) => text((await sample(`Name ${picture}.`)).content.text),
  spill: ({ colour }) => text(`There is no ${colour} any more.`, { isError: true }),
  tear: ({ paper }) => Promise.reject(new Error(`The ${paper} is torn.`)),
  engrave: ({ text: words }) => text(`${words}, in copper`),
};
const PARAMETERS = { develop: "photo", spill: "colour", tear: "paper", engrave: "text" }; // the others have "picture"

// Runs the work of a task that was answered already, and stores how it ends.
async function run(name, given, taskId, extra) {
  try {
    const result = await WORK[name](given, workshop(taskId, extra));
    await extra.taskStore.storeTaskResult(taskId, result.isError ? "failed" : "completed", result);
  } catch (error) {
    await extra.taskStore.updateTaskStatus(taskId, "failed", error.message).catch(() => {}); // it was cancelled
  }
}

function addTaskTool(server, name) {
  const inputSchema = { [PARAMETERS[name] ?? "picture"]: z.string() };
  const execution = { taskSupport: name === "engrave" ? "required" : "optional" };
  server.experimental.tasks.registerToolTask(name, { inputSchema, execution }, {
    async createTask(given, extra) {
      const task = await extra.taskStore.createTask({ ttl: extra.taskRequestedTtl ?? 3_600_000, pollInterval: 50 });
      setImmediate(run, name, given, task.taskId, extra);
      return { task };
    },
    getTask: (_given, extra) => extra.taskStore.getTask(extra.taskId),
    getTaskResult: (_given, extra) => extra.taskStore.getTaskResult(extra.taskId),
  });
}

// The result of a question that the client answers as a task.
async function settled(stream) {
  for await (const message of stream) {
    if (message.type === "result") return message.result;
    if (message.type === "error") throw message.error;
  }
}

function makeServer() {
  const server = new McpServer(
    { name: "studio", version: "1.0" },
    {
      capabilities: { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
      taskStore,
      taskMessageQueue,
      defaultTaskPollInterval: 50,
    },
  );
  const numbers = { a: z.number().int(), b: z.number().int() };
  server.registerTool("add", { inputSchema: numbers }, ({ a, b }) => text(a + b));
  server.registerTool("go_on", { inputSchema: { picture: z.string() } }, ({ picture }) => {
    goOn(picture);
    return text("It goes on.");
  });
  server.registerTool("ask_as_task", { inputSchema: { picture: z.string() } }, async ({ picture }, extra) => {
    const tasks = server.server.experimental.tasks;
    const options = { task: { ttl: 60_000 }, relatedRequestId: extra.requestId };
    const question = { mode: "form", message: `Which wood for ${picture}?`, requestedSchema: WOOD };
    const { content } = await settled(tasks.elicitInputStream(question, options));
    const messages = [{ role: "user", content: { type: "text", text: `Name ${picture}.` } }];
    const said = await settled(tasks.createMessageStream({ messages, maxTokens: 20 }, options));
    return text(`${said.content.text} in ${content.wood}`);
  });
  for (const name of Object.keys(WORK)) addTaskTool(server, name);
  return server;
}

const sessions = new Map();

async function openSession() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
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
