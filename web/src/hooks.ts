// Hooks: data of a route that follows the events, the address of the page, time.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get, Problem } from "./api";
import { currentLink, currentReadings, watchEvents, watchLink, watchReadings, type Link } from "./live";
import type { Happening, JobId, Progress, Readings } from "./types";

// Milliseconds: how long events are collected before a reload; the least time between two reloads, which grows
// while events keep coming, and is short again after a pause.
const TOGETHER = 60;
const GAP = 300;
const LONGEST_GAP = 3_000;
const QUIET = 5_000;

const cached = new Map<string, unknown>();
const MOST_CACHED = 60;

function remember(path: string, data: unknown): void {
  cached.delete(path);
  cached.set(path, data);
  if (cached.size > MOST_CACHED) cached.delete(cached.keys().next().value as string);
}

export interface Resource<T> {
  data: T | null;
  error: Problem | null;
  reload: () => void;
}

/** The JSON at a path. It is loaded again when an event comes that `concerns` it, and after a reconnect. */
export function useResource<T>(path: string | null, concerns?: (event: Happening) => boolean): Resource<T> {
  const [state, setState] = useState<{ path: string | null; data: T | null; error: Problem | null }>({
    path: null,
    data: null,
    error: null,
  });
  const reload = useRef<() => void>(() => undefined);
  const relevant = useRef(concerns);
  relevant.current = concerns;
  useEffect(() => {
    if (path === null) return;
    const stopped = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let loadedAt = 0;
    let gap = GAP;
    const load = async () => {
      timer = undefined;
      loadedAt = performance.now();
      try {
        const data = await get<T>(path, stopped.signal);
        remember(path, data);
        if (!stopped.signal.aborted) setState({ path, data, error: null });
      } catch (error) {
        if (stopped.signal.aborted) return;
        const shown = error instanceof Problem ? error : null; // a lost connection is shown at the top
        setState((before) => ({ path, data: before.path === path ? before.data : null, error: shown }));
      }
    };
    const soon = () => {
      if (timer !== undefined) return;
      const now = performance.now();
      gap = now - loadedAt > QUIET ? GAP : Math.min(gap * 1.5, LONGEST_GAP);
      timer = setTimeout(() => void load(), Math.max(TOGETHER, loadedAt + gap - now));
    };
    reload.current = () => {
      clearTimeout(timer);
      void load();
    };
    void load();
    const unwatch = watchEvents(
      (event) => {
        if (relevant.current?.(event)) soon();
      },
      soon,
    );
    return () => {
      stopped.abort();
      clearTimeout(timer);
      unwatch();
    };
  }, [path]);
  const data = state.path === path ? state.data : ((path && (cached.get(path) as T)) || null);
  return { data, error: state.path === path ? state.error : null, reload: useCallback(() => reload.current(), []) };
}

export function useEvents(watcher: (event: Happening) => void, refresh?: () => void): void {
  const now = useRef({ watcher, refresh });
  now.current = { watcher, refresh };
  useEffect(
    () =>
      watchEvents(
        (event) => now.current.watcher(event),
        () => now.current.refresh?.(),
      ),
    [],
  );
}

export function useLink(): Link {
  const [link, setLink] = useState(currentLink());
  useEffect(() => watchLink(setLink), []);
  return link;
}

/** The latest readings of GPUs and progress of jobs, by index and id. */
export function useReadings(): { gpus: Map<number, Readings["gpus"][0]>; jobs: Map<JobId, Progress> } {
  const [, setVersion] = useState(0);
  useEffect(() => watchReadings(() => setVersion((version) => version + 1)), []);
  const { gpus, jobs } = currentReadings();
  return {
    gpus: new Map(gpus.map((one) => [one.index, one])),
    jobs: new Map(jobs.map((one) => [one.id, one.progress])),
  };
}

/** The time, renewed every `every` ms while the page is visible. */
export function useNow(every = 1000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

// ---------------------------------------------------------------- the address

export const BASE = "/web/";

export interface Address {
  path: string;
  query: URLSearchParams;
}

function read(): Address {
  return { path: location.pathname.replace(BASE, ""), query: new URLSearchParams(location.search) };
}

const onMove = new Set<() => void>();
window.addEventListener("popstate", () => onMove.forEach((watcher) => watcher()));

export function navigate(to: string, replace = false): void {
  if (replace) history.replaceState(null, "", BASE + to);
  else history.pushState(null, "", BASE + to);
  onMove.forEach((watcher) => watcher());
}

export function useAddress(): Address {
  const [address, setAddress] = useState(read);
  useEffect(() => {
    const watcher = () => setAddress(read());
    onMove.add(watcher);
    return () => void onMove.delete(watcher);
  }, []);
  return address;
}

/** Change parts of the query in the address; an empty value removes one. */
export function setQuery(changes: Record<string, string>): void {
  const { path, query } = read();
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  navigate(path + (text ? `?${text}` : ""), true);
}
