// Starts @modelcontextprotocol/server-everything as it is, except that it listens on loopback only: it takes no host.
//
//     node everything.mjs NODE_MODULES stdio
//     PORT=... node everything.mjs NODE_MODULES streamableHttp

import { Server } from "node:net";
import { pathToFileURL } from "node:url";

const [modules] = process.argv.splice(2, 1); // what is left is what it reads
const { listen } = Server.prototype;
Server.prototype.listen = function (port, ...rest) {
  return listen.call(this, port, "127.0.0.1", ...rest);
};
await import(pathToFileURL(`${modules}/@modelcontextprotocol/server-everything/dist/index.js`).href);
