// The event stream, shared by all parts of the page: reconnects, continues after the last event it saw, and
// closes while the page is hidden. fetch instead of EventSource, which cannot send the session's header.

import { Problem, problemOf, sessionHeaders } from "./api";
import type { Happening, Readings } from "./types";

export type Link = "connecting" | "live" | "lost";

// Milliseconds without any data after which the connection counts as lost; the daemon sends something every
// 15 s. Pauses between attempts. How long a hidden page keeps its stream.
const SILENCE = 40_000;
const PAUSE = 500;
const LONGEST_PAUSE = 8_000;
const HIDDEN = 20_000;

const onEvent = new Set<(event: Happening) => void>();
const onRefresh = new Set<() => void>();
const onReadings = new Set<() => void>();
const onLink = new Set<(link: Link) => void>();
let link: Link = "connecting";
let last: number | null = null;
let running: AbortController | null = null;
let isStarted = false;

export const currentLink = () => link;

export function watchEvents(watcher: (event: Happening) => void, refresh?: () => void): () => void {
  onEvent.add(watcher);
  if (refresh) onRefresh.add(refresh);
  return () => {
    onEvent.delete(watcher);
    if (refresh) onRefresh.delete(refresh);
  };
}

export function watchLink(watcher: (link: Link) => void): () => void {
  onLink.add(watcher);
  return () => onLink.delete(watcher);
}

let readings: Readings = { gpus: [], jobs: [] };

export const currentReadings = () => readings;

export function watchReadings(watcher: () => void): () => void {
  onReadings.add(watcher);
  return () => onReadings.delete(watcher);
}

function setLink(now: Link): void {
  if (now === link) return;
  link = now;
  onLink.forEach((watcher) => watcher(now));
}

export function startLive(): void {
  if (isStarted) return;
  isStarted = true;
  let hiding: ReturnType<typeof setTimeout> | undefined;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(stop, HIDDEN);
    else if (!running) void run();
  });
  void run();
}

export function stop(): void {
  running?.abort();
  running = null;
}

async function run(): Promise<void> {
  const mine = (running = new AbortController());
  let pause = PAUSE;
  while (!mine.signal.aborted) {
    try {
      await listen(mine.signal, () => (pause = PAUSE));
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error instanceof Problem && error.status === 401) return stop();
    }
    if (mine.signal.aborted) return;
    setLink("lost");
    await new Promise((done) => setTimeout(done, pause * (0.75 + Math.random() / 2)));
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }
}

async function listen(stopped: AbortSignal, connected: () => void): Promise<void> {
  const own = new AbortController();
  const abort = () => own.abort();
  stopped.addEventListener("abort", abort);
  let silence = setTimeout(abort, SILENCE);
  try {
    const seen: Record<string, string> = last === null ? {} : { "Last-Event-ID": String(last) };
    const headers = { Accept: "text/event-stream", ...sessionHeaders(), ...seen };
    const response = await fetch("/events?readings=1", { headers, signal: own.signal, credentials: "same-origin" });
    if (!response.ok || !response.body) throw await problemOf(response);
    for await (const frame of frames(response.body)) {
      clearTimeout(silence);
      silence = setTimeout(abort, SILENCE);
      if (frame) handle(frame, connected);
    }
  } finally {
    clearTimeout(silence);
    stopped.removeEventListener("abort", abort);
    own.abort();
  }
}

function handle(frame: Frame, connected: () => void): void {
  const data = JSON.parse(frame.data) as Happening;
  if (frame.id) last = Number(frame.id);
  if (frame.event === "connected") {
    connected();
    setLink("live");
    onRefresh.forEach((refresh) => refresh());
  } else if (frame.event === "readings") {
    readings = data as unknown as Readings;
    onReadings.forEach((watcher) => watcher());
  } else if (frame.event === "missed") {
    onRefresh.forEach((refresh) => refresh());
  } else {
    onEvent.forEach((watcher) => watcher(data));
  }
}

export interface Frame {
  event: string;
  id: string;
  data: string;
}

/** The frames of a stream of server-sent events; null for a comment, which shows that it is alive. */
export async function* frames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame | null> {
  const reader = body.pipeThrough(new TextDecoderStream() as never).getReader() as ReadableStreamDefaultReader<string>;
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) yield parse(part);
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

function parse(text: string): Frame | null {
  const frame: Frame = { event: "", id: "", data: "" };
  for (const line of text.split("\n")) {
    if (line.startsWith("data: ")) frame.data += line.slice(6);
    else if (line.startsWith("event: ")) frame.event = line.slice(7);
    else if (line.startsWith("id: ")) frame.id = line.slice(4);
  }
  return frame.data ? frame : null;
}
