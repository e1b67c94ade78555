// What the library has and says, for the servers on the peers' TypeScript SDKs: no SDK is imported here.

import { readFileSync } from "node:fs";

const file = new URL("books.json", import.meta.url);
export const BOOKS = new Map(JSON.parse(readFileSync(file, "utf8")).map((book) => [book.id, book]));
export const GENRES = [...new Set([...BOOKS.values()].map(({ genre }) => genre))].sort();
export const INSTRUCTIONS = "Search before you lend: a book is lent by the id that search_books gives.";
export const NOTICES = "library://notices";
export const FINE = { message: "Pay your fine of 2 francs.", url: "https://library.example/fines/7" };
export const RESERVATION = {
  type: "object",
  properties: {
    reader: { type: "string" },
    day: { type: "string", enum: ["Tuesday", "Saturday"] },
    weeks: { type: "integer", minimum: 1, maximum: 6, default: 3 },
  },
  required: ["reader", "day"],
};

export const state = { notices: ["The library opens at nine."], slips: 0, waitsGivenUp: 0, cafeIsOpen: false };

export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
export const text = (words) => ({ content: [{ type: "text", text: String(words) }] });
export const failure = (words) => ({ ...text(words), isError: true });
export const contents = (uri, mimeType, words) => ({ contents: [{ uri, mimeType, text: words }] });
export const starting = (names, value) => [...names].filter((name) => name.startsWith(value));
export const noSuchBook = (id) => `There is no book '${id}': search for it first.`;
export const question = (id) => `Who fetches ${BOOKS.get(id).title}, and when?`;
export const catalogue = () =>
  [...BOOKS.values()].map(({ id, title, author }) => `${id}  ${title}, ${author}`).join("\n");

export const recommendation = ({ genre, mood }) => {
  const words = `I am in a ${mood ?? "curious"} mood. Recommend one ${genre} book from library://catalogue, and say why.`;
  return { messages: [{ role: "user", content: { type: "text", text: words } }] };
};

// What a reservation comes to; `wish` is what was answered, or undefined.
export function slip(id, wish) {
  state.slips += 1;
  if (!wish) return `Nothing was reserved; slip ${state.slips} is void.`;
  const { reader, day, weeks = 3 } = wish;
  return `Slip ${state.slips}: ${BOOKS.get(id).title} for ${reader} on ${day}, for ${weeks} weeks.`;
}

// Waits, unless the signal of the call says that the client gave up.
export async function waitAtDesk(seconds, signal) {
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      state.waitsGivenUp += 1;
      resolve();
    });
  });
  return text(`The librarian came after ${seconds} seconds.`);
}

// Every event of every stream, in order; an id is a place in that order.
export class Events {
  events = [];

  async storeEvent(stream, message) {
    this.events.push([stream, message]);
    return String(this.events.length - 1);
  }

  async getStreamIdForEventId(id) {
    return this.events[Number(id)]?.[0];
  }

  async replayEventsAfter(id, { send }) {
    const [stream] = this.events[Number(id)];
    for (const [number, [of, message]] of this.events.entries()) {
      if (number > Number(id) && of === stream && message.jsonrpc) await send(String(number), message);
    }
    return stream;
  }
}
