// Arrays and sweeps as one row: how far they are, and a heat map of the states of their jobs.

import { useRef, useState } from "preact/hooks";
import { number } from "../format";
import { navigate } from "../hooks";
import type { Counts } from "../job_types";
import { WORDS } from "../parts/ui";
import type { Job, JobId, State } from "../types";

export interface Member {
  id: JobId;
  state: State;
  reason?: string | null;
}

export interface Members {
  total: number;
  counts: Record<State, number>;
  // Jobs that have a record; tasks of an array that have not started have none.
  tasks: Member[];
}

export interface Row {
  key: string;
  job: Job;
  members: Members | null;
  isOpen: boolean;
  depth: number;
  title?: string;
  link?: string;
}

export const ORDER: State[] = ["Finished", "Running", "Failed", "Timeout", "Cancelled", "Hold", "Queued"];

const none = (): Record<State, number> => ({
  Queued: 0, Hold: 0, Running: 0, Finished: 0, Failed: 0, Cancelled: 0, Timeout: 0,
});

export function membersOf(tasks: Job[], array: Job | undefined): Members {
  const counts = none();
  for (const task of tasks) counts[task.state]++;
  if (array?.tasks) {
    // The record of the array counts all tasks, also those that are not listed here.
    const all = array.tasks;
    counts[array.state === "Hold" ? "Hold" : "Queued"] += all.waiting;
    counts.Finished = Math.max(counts.Finished, all.finished);
    counts.Failed = Math.max(counts.Failed, all.failed - counts.Timeout);
    counts.Cancelled = Math.max(counts.Cancelled, all.cancelled);
    counts.Running = Math.max(counts.Running, all.active);
  }
  return { total: Object.values(counts).reduce((sum, one) => sum + one, 0), counts, tasks };
}

/** The members of a group that the daemon has counted. */
export function countedMembers(total: number, counts: Counts, tasks: Member[]): Members {
  const states = { ...none(), Queued: counts.waiting, Hold: counts.held, Running: counts.running };
  const ends = { Finished: counts.finished, Failed: counts.failed, Cancelled: counts.cancelled };
  return { total, counts: { ...states, ...ends }, tasks };
}

const groupOf = (job: Job) => (job.array_id !== null ? `a${job.array_id}` : job.group_id !== null ? `g${job.group_id}` : "");

/** The rows of a list: jobs of one array or sweep become one row, which may be open. */
export function gather(jobs: Job[], open: Set<string>): Row[] {
  const groups = new Map<string, Job[]>();
  for (const job of jobs) {
    const key = groupOf(job);
    if (key) groups.set(key, [...(groups.get(key) ?? []), job]);
  }
  const rows: Row[] = [];
  const done = new Set<string>();
  for (const job of jobs) {
    const key = groupOf(job);
    const members = groups.get(key) ?? [];
    if (!key || (members.length < 2 && job.tasks === null)) {
      rows.push({ key: String(job.id), job, members: null, isOpen: false, depth: 0 });
    } else if (!done.has(key)) {
      done.add(key);
      rows.push(...groupRows(key, members, open.has(key)));
    }
  }
  return rows;
}

function groupRows(key: string, members: Job[], isOpen: boolean): Row[] {
  const array = members.find((job) => job.tasks !== null);
  const tasks = members.filter((job) => job.tasks === null);
  const job = (array ?? tasks[0]) as Job;
  const link = key.startsWith("a") ? `jobs/${job.array_id}` : `sweeps/${key}`;
  const title = key.startsWith("a") ? String(job.array_id) : key;
  const head: Row = { key, job, members: membersOf(tasks, array), isOpen, depth: 0, title, link };
  const inside = isOpen ? tasks.map((task) => ({ key: String(task.id), job: task, members: null, isOpen: false, depth: 1 })) : [];
  return [head, ...inside];
}

export function summary(members: Members): string {
  return ORDER.filter((state) => members.counts[state])
    .map((state) => `${number(members.counts[state])} ${WORDS[state].toLowerCase()}`)
    .join(", ");
}

/** One bar with a part for each state. */
export function TaskBar({ members }: { members: Members }) {
  return (
    <span class="task-bar" role="img" aria-label={summary(members)} title={summary(members)}>
      {ORDER.filter((state) => members.counts[state]).map((state) => (
        <i class={`is-${state.toLowerCase()}`} style={{ flexGrow: members.counts[state] }} />
      ))}
      <span class="muted">{summary(members)}</span>
    </span>
  );
}

/** One cell for each job, in a row of a list. The keyboard opens the row instead. */
export function Heat({ members }: { members: Members }) {
  return (
    <span class="heat" role="img" aria-label={summary(members)} title={summary(members)}>
      {members.tasks.map((task) => (
        <i class={`is-${task.state.toLowerCase()}`} title={titleOf(task)} onClick={() => navigate(`jobs/${task.id}`)} />
      ))}
      <Rest members={members} />
      <span class="muted">{summary(members)}</span>
    </span>
  );
}

const titleOf = (task: Member) => `${task.id}: ${WORDS[task.state]}${task.reason ? `, ${task.reason}` : ""}`;

function Rest({ members }: { members: Members }) {
  const waiting = members.total - members.tasks.length;
  return waiting > 0 ? <i class="is-queued is-rest">+{number(waiting)}</i> : null;
}

const KEYS: Record<string, (at: number, row: number, last: number) => number> = {
  ArrowRight: (at) => at + 1,
  ArrowLeft: (at) => at - 1,
  ArrowDown: (at, row) => at + row,
  ArrowUp: (at, row) => at - row,
  Home: () => 0,
  End: (_at, _row, last) => last,
};

/** One button for each job. One of them is in the order of the Tab key; arrows move between them. */
export function HeatMap({ members, chosen, onChoose }: { members: Members; chosen: JobId | null; onChoose: (id: JobId) => void }) {
  const box = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState(0);
  const last = members.tasks.length - 1;
  const move = (event: KeyboardEvent) => {
    const to = KEYS[event.key];
    const cells = box.current?.querySelectorAll("button");
    if (!to || !cells?.length) return;
    event.preventDefault();
    const top = cells[0]!.offsetTop;
    const row = [...cells].findIndex((cell) => cell.offsetTop > top);
    const next = Math.min(last, Math.max(0, to(at, row < 0 ? cells.length : row, last)));
    setAt(next);
    cells[next]?.focus();
  };
  return (
    <div class="heat is-large" role="group" aria-label={`tasks: ${summary(members)}`} ref={box} onKeyDown={move}>
      {members.tasks.map((task, index) => (
        <button
          type="button"
          class={`cell is-${task.state.toLowerCase()}`}
          aria-label={titleOf(task)}
          aria-pressed={task.id === chosen}
          title={titleOf(task)}
          tabIndex={index === Math.min(at, last) ? 0 : -1}
          onFocus={() => setAt(index)}
          onClick={() => onChoose(task.id)}
        />
      ))}
      <Rest members={members} />
    </div>
  );
}
