// The text of a log as lines, loaded in pieces, and the search in it by the daemon.

import { get, problemOf, sessionHeaders } from "../api";
import { plain } from "../format";
import { frames } from "../live";
import type { FoundLine, Search } from "../job_types";
import type { JobId, Output } from "../types";

// Bytes that are loaded at first, with each further piece, and before a line that is jumped to.
const LAST = 256 << 10;
const MORE = 1 << 20;
const BEFORE = 64 << 10;
const MOST_LINES = 200_000;
// Lines that a search collects.
const MOST_FOUND = 1000;
// Terminal sequences: colours, cursor movements, titles.
// eslint-disable-next-line no-control-regex
const SEQUENCES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

/** A part of a log. `first`: the number of its first line; null: unknown. `rest`: a line that is not complete. */
export interface Content {
  start: number;
  end: number;
  size: number;
  first: number | null;
  lines: string[];
  rest: string;
  final: boolean;
}

export type SetContent = (change: (before: Content | null) => Content | null) => void;

/** A line as a terminal would leave it: without sequences, and after a carriage return only what follows. */
export function cleanLine(line: string): string {
  const text = line.replace(SEQUENCES, "").replace(/\r+$/, "");
  return plain(text.slice(text.lastIndexOf("\r") + 1).replaceAll("\t", "    "));
}

const read = (id: JobId, offset: number, limit: number, signal?: AbortSignal) =>
  get<Output>(`/jobs/${id}/output?lines=1&offset=${offset}&limit=${limit}`, signal);

/** The end of a log, and what is added to it until the job ends. */
export async function followEnd(id: JobId, signal: AbortSignal, setContent: SetContent): Promise<void> {
  const piece = await read(id, -LAST, LAST, signal);
  setContent(() => contentOf(piece, piece.start > 0));
  if (piece.final && piece.end >= piece.size) return;
  await follow(id, piece.end, signal, setContent);
}

/** The part of a log around a line. */
export async function contentAround(id: JobId, offset: number, signal: AbortSignal): Promise<{ content: Content; at: number }> {
  const begin = Math.max(0, offset - BEFORE);
  const before = offset ? contentOf(await read(id, begin, offset - begin, signal), begin > 0) : null;
  const after = contentOf(await read(id, offset, LAST, signal), false);
  if (!before) return { content: after, at: 0 };
  const lines = [...before.lines, ...after.lines];
  return { content: { ...after, start: before.start, first: before.first, lines }, at: before.lines.length };
}

export async function contentBefore(id: JobId, content: Content): Promise<Content> {
  const offset = Math.max(0, content.start - MORE);
  const piece = contentOf(await read(id, offset, content.start - offset), offset > 0);
  return { ...content, start: piece.start, first: piece.first, lines: [...piece.lines, ...content.lines] };
}

export async function contentAfter(id: JobId, content: Content): Promise<Content> {
  return add(content, await read(id, content.end, MORE));
}

function contentOf(piece: Output, isCut: boolean): Content {
  let { text, start, line } = piece;
  const cut = isCut ? text.indexOf("\n") + 1 : 0; // begin with a whole line
  if (cut) {
    start += new TextEncoder().encode(text.slice(0, cut)).length;
    text = text.slice(cut);
    line = line === null ? null : line + 1;
  }
  const empty: Content = { start, end: start, size: piece.size, first: line, lines: [], rest: "", final: piece.final };
  return add(empty, { ...piece, text });
}

async function follow(id: JobId, from: number, signal: AbortSignal, setContent: SetContent): Promise<void> {
  let offset = from;
  while (!signal.aborted) {
    try {
      const path = `/jobs/${id}/output/stream?offset=${offset}`;
      const response = await fetch(path, { headers: sessionHeaders(), signal, credentials: "same-origin" });
      if (!response.ok || !response.body) throw await problemOf(response);
      for await (const frame of frames(response.body)) {
        if (!frame) continue;
        const piece = JSON.parse(frame.data) as Output;
        offset = piece.end;
        const isOver = frame.event === "end";
        setContent((before) => before && { ...add(before, piece), final: isOver });
        if (isOver) return;
      }
    } catch {
      if (signal.aborted) return;
    }
    await new Promise((done) => setTimeout(done, 2000));
  }
}

/** The content with more text. A line that is not complete is the last one, and is drawn again with the next text. */
function add(before: Content, piece: Output): Content {
  const parts = (before.rest + piece.text).split("\n");
  const rest = parts.pop() ?? "";
  const complete = before.rest ? before.lines.slice(0, -1) : before.lines;
  const all = [...complete, ...parts.map(cleanLine), ...(rest ? [cleanLine(rest)] : [])];
  const left = Math.max(0, all.length - MOST_LINES);
  const lines = left ? all.slice(left) : all;
  const first = before.first === null ? null : before.first + left;
  return { ...before, lines, rest, first, end: piece.end, size: piece.size, final: piece.final };
}

export interface Found {
  lines: FoundLine[];
  // The part of the log that was searched, from 0 to 1.
  part: number;
  isOver: boolean;
}

/** Search the whole log, one part after the other; empty text: lines that look like errors. */
export async function* searchLog(id: JobId, text: string, most: number, signal: AbortSignal): AsyncGenerator<Found> {
  const lines: FoundLine[] = [];
  let place = "";
  const limit = Math.min(most, MOST_FOUND);
  while (!signal.aborted) {
    const words = `find=${encodeURIComponent(text)}&limit=${limit - lines.length}${place}`;
    const found = await get<Search>(`/jobs/${id}/output/search?${words}`, signal);
    lines.push(...found.found);
    const isOver = !found.next || lines.length >= limit;
    yield { lines: [...lines], part: found.next ? found.next.offset / Math.max(1, found.size) : 1, isOver };
    if (isOver || !found.next) return;
    place = `&offset=${found.next.offset}&line=${found.next.line}`;
  }
}
