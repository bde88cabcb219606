// The rows of the list of jobs: loaded in parts as they come into view, and again as events come.
//
// Rows of the queue, and of lists in another order, are counted: any part can be loaded. Other rows are not: each
// part follows the one before it.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api";
import { useEvents } from "../hooks";
import type { ListingRow, Rows } from "../job_types";
import type { Range } from "../parts/window";
import type { Job, Jobs } from "../types";
import { aboutJobs } from "./overview";

const PART = 100;
// Milliseconds: how long events are collected before parts are loaded again.
const STALE = 400;

export interface RowList {
  // Rows, with some more at the end while it is not known how many there are; null: nothing is loaded.
  count: number | null;
  // Jobs that match.
  jobs: number;
  error: string;
  version: number;
  row: (index: number) => ListingRow | undefined;
  indexOf: (key: string) => number;
  want: (range: Range) => void;
}

interface Part {
  rows: ListingRow[];
  next: string | null;
}

export const rowKey = (row: ListingRow) => String(row.group ? row.group.id : row.job.id);

/** Rows at a path. `isGrouped`: arrays and sweeps are one row each; else every job is a row. */
export function useRowList(path: string, isGrouped: boolean): RowList {
  const parts = useRef(new Map<number, Part>());
  const asked = useRef(new Set<number>());
  const range = useRef<Range>({ first: 0, last: PART });
  const stale = useRef<ReturnType<typeof setTimeout>>();
  const total = useRef<number | null | undefined>(undefined);
  // Whether the first part may have changed while another one was in view.
  const isTopStale = useRef(false);
  const isLive = useRef(true);
  const [state, setState] = useState({ jobs: 0, error: "", version: 0 });

  const load = async (part: number): Promise<void> => {
    const place = placeOf(part);
    if (place === null || asked.current.has(part)) return;
    asked.current.add(part);
    let isLoaded = false;
    try {
      const address = `${path}&limit=${PART}${place}`;
      const found = isGrouped ? await get<Rows>(`${address}&form=rows`) : flat(await get<Jobs>(address));
      if (!isLive.current) return;
      const before = parts.current.get(part);
      parts.current.set(part, { rows: found.rows, next: found.next });
      // What follows a part that now ends elsewhere is loaded again.
      if (found.total === null && before && before.next !== found.next) drop((index) => index > part);
      total.current = found.total;
      setState((now) => ({ jobs: found.jobs, error: "", version: now.version + 1 }));
      isLoaded = true;
    } catch (error) {
      if (isLive.current) setState((now) => ({ ...now, error: error instanceof Error ? error.message : "" }));
    } finally {
      asked.current.delete(part);
      if (isLoaded && total.current === null) want(range.current); // the next part, if it is in view
    }
  };
  /** Where a part begins, as words of a query; null: it is not known yet, or there is no such part. */
  const placeOf = (part: number): string | null => {
    if (part === 0) return "";
    if (total.current === null) {
      const before = parts.current.get(part - 1);
      return before?.next ? `&after=${before.next}` : null;
    }
    return part * PART < (total.current ?? PART) ? `&offset=${part * PART}` : null;
  };
  const drop = (isDropped: (part: number) => boolean) => {
    for (const part of [...parts.current.keys()]) if (isDropped(part)) parts.current.delete(part);
  };
  /** The part that a row is in; of rows that are not counted, a part may have fewer than `PART`. */
  const partOf = (index: number): { part: number; at: number } => {
    if (total.current !== null) return { part: Math.floor(index / PART), at: index % PART };
    let part = 0;
    let at = index;
    for (let one = parts.current.get(0); one && at >= one.rows.length && one.next; one = parts.current.get(part)) {
      at -= one.rows.length;
      part++;
    }
    return { part, at };
  };
  const shown = () => ({ first: partOf(range.current.first).part, last: partOf(Math.max(0, range.current.last - 1)).part });
  const refresh = () => {
    const { first, last } = shown();
    if (total.current !== null) drop((part) => part < first || part > last);
    isTopStale.current = first > 0;
    for (let part = first; part <= last; part++) void load(part);
  };
  const want = (now: Range) => {
    range.current = now;
    const { first, last } = shown();
    if (first === 0 && isTopStale.current) refresh();
    // While the user scrolls, also the part that follows.
    const end = now.first > 0 ? last + 1 : last;
    for (let part = first; part <= end; part++) if (!parts.current.has(part)) void load(part);
  };
  useEffect(() => {
    void load(0);
    return () => {
      isLive.current = false;
      clearTimeout(stale.current);
    };
  }, []);
  useEvents((event) => {
    if (!event.job || !aboutJobs(event)) return;
    if (patch(parts.current, event.job)) setState((now) => ({ ...now, version: now.version + 1 }));
    clearTimeout(stale.current);
    stale.current = setTimeout(refresh, STALE);
  }, refresh);

  /** Rows that are loaded, and room for a part if there are more. */
  const loaded = () => {
    let count = 0;
    for (const one of parts.current.values()) count += one.rows.length;
    return count + (parts.current.get(parts.current.size - 1)?.next ? PART : 0);
  };
  const row = (index: number) => {
    const { part, at } = partOf(index);
    return parts.current.get(part)?.rows[at];
  };
  const indexOf = (key: string) => {
    let before = 0;
    for (const [part, one] of [...parts.current].sort(([a], [b]) => a - b)) {
      const at = one.rows.findIndex((found) => rowKey(found) === key);
      if (at >= 0) return (total.current === null ? before : part * PART) + at;
      before += one.rows.length;
    }
    return -1;
  };
  const count = total.current === undefined ? null : (total.current ?? loaded());
  return { ...state, count, row, indexOf, want };
}

const flat = (found: Jobs): Rows => ({
  rows: found.jobs.map((job) => ({ job, group: null })),
  total: found.total,
  next: null,
  jobs: found.total,
});

/** Show the new state of a job at once. The reason why it waits is not part of an event. */
function patch(parts: Map<number, Part>, now: Job): boolean {
  for (const { rows } of parts.values()) {
    for (const row of rows) {
      const cell = row.group?.jobs?.find((one) => one.id === now.id);
      if (cell) cell.state = now.state;
      if (row.group || row.job.id !== now.id) continue;
      row.job = { ...now, reason: now.reason ?? (now.state === row.job.state ? row.job.reason : null) };
      return true;
    }
  }
  return false;
}
