// What a user can do with a job. Each action shows its command line; those that destroy work ask first.

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { newToken, post, Problem } from "../api";
import { duration, number, quote } from "../format";
import { navigate, useResource } from "../hooks";
import type { Group, Results } from "../job_types";
import type { Job, JobId, Jobs } from "../types";
import { isFinal } from "../types";
import { CommandLine, Dialog, Failure, tell } from "./ui";

export interface Action {
  name: string;
  title: string;
  about: string;
  command: string;
  isDestructive: boolean;
  // `token`: the same when it is tried again after a lost answer, so that no second job is made.
  run: (token: string) => Promise<void>;
}

/** `isMine`: only the owner of a job may run it again, operators may not. */
export function actionsOf(job: Job, isMine: boolean): Action[] {
  const id = job.id;
  const found: Action[] = [];
  const isArray = job.tasks !== null;
  if (job.state === "Queued") {
    found.push({
      name: "Hold",
      title: `Hold job ${id}`,
      about: "It keeps its place and does not start until it is released.",
      command: `gjob hold ${id}`,
      isDestructive: false,
      run: () => change("/jobs/hold", { jobs: [String(id)] }, `Job ${id} is held`),
    });
  }
  if (job.state === "Hold") {
    found.push({
      name: "Release",
      title: `Release job ${id}`,
      about: "It may start from now on.",
      command: `gjob release ${id}`,
      isDestructive: false,
      run: () => change("/jobs/release", { jobs: [String(id)] }, `Job ${id} is released`),
    });
  }
  if (isMine && (isFinal(job.state) || isArray)) {
    found.push({
      name: "Run again",
      title: `Run job ${id} again`,
      about: "A new job with the same command, options and environment.",
      command: `gjob redo ${id}`,
      isDestructive: false,
      run: (token) => redo(id, token),
    });
  }
  if (!isFinal(job.state)) {
    const isRunning = job.state === "Running" || (job.tasks?.active ?? 0) > 0;
    found.push({
      name: "Cancel",
      title: `Cancel job ${id}?`,
      about: isRunning
        ? "It is running. It is asked to stop, and killed after its grace time. Work since its last checkpoint is lost."
        : "It leaves the queue. Jobs that depend on it are cancelled too.",
      command: `gcancel ${id}`,
      isDestructive: true,
      run: () => change("/jobs/cancel", { jobs: [String(id)] }, `Job ${id} is being cancelled`),
    });
  }
  return found;
}

async function change(path: string, body: unknown, done: string): Promise<void> {
  await post(path, body);
  tell(done);
}

async function redo(id: JobId, token: string, failed = false): Promise<void> {
  const made = await post<Jobs>("/jobs/redo", { job: String(id), token, failed });
  const first = made.jobs[0];
  if (first) {
    const last = made.jobs[made.jobs.length - 1]!;
    tell(made.jobs.length > 1 ? `Submitted as jobs ${first.id} to ${last.id}` : `Submitted as job ${first.id}`);
    navigate(`jobs/${first.id}`);
  }
}

/** Run the failed jobs of a sweep, or these tasks of an array, again as new jobs. */
export function redoFailed(selector: string, count: number): Action {
  const isSweep = selector.startsWith("g");
  return {
    name: "Run failed again",
    title: `Run ${count} failed ${isSweep ? "job" : "task"}${count > 1 ? "s" : ""} again`,
    about: "New jobs with the same command, options and environment.",
    command: isSweep ? `gjob redo ${selector} --failed` : `gjob redo '${selector}'`,
    isDestructive: false,
    run: (token) => redo(selector, token, isSweep),
  };
}

// Failed tasks that one request names.
const MOST_REDONE = 1000;

/** The button that runs the failed tasks of an array again. */
function RedoTasks({ id, count }: { id: JobId; count: number }) {
  const path = `/jobs?states=Failed,Timeout&jobs=${id}&form=results-json&limit=${MOST_REDONE}`;
  const found = useResource<Results>(path, (event) => String(event.job_id).startsWith(`${id}_`));
  const tasks = (found.data?.results ?? []).map((one) => Number(String(one.id).split("_")[1])).filter(Number.isInteger);
  if (!count || !tasks.length) return null;
  return <ActionButton action={redoFailed(`${id}_[${ranges(tasks)}]`, tasks.length)} />;
}

/** Numbers as `3,7-9`. */
export function ranges(numbers: number[]): string {
  const spans: [number, number][] = [];
  for (const one of [...numbers].sort((a, b) => a - b)) {
    const last = spans[spans.length - 1];
    if (last && one <= last[1] + 1) last[1] = one;
    else spans.push([one, one]);
  }
  return spans.map(([first, last]) => (first === last ? String(first) : `${first}-${last}`)).join(",");
}

/** A button for one action. */
export function ActionButton({ action }: { action: Action }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" class={action.isDestructive ? "danger" : ""} onClick={() => setOpen(true)}>
        {action.name}
      </button>
      {isOpen && <Confirmation action={action} onClose={() => setOpen(false)} />}
    </>
  );
}

/** Change the priority or the time limit of a job that has not ended. */
function Change({ job, onClose }: { job: Job; onClose: () => void }) {
  const [priority, setPriority] = useState("");
  const [time, setTime] = useState("");
  const options: Record<string, unknown> = {};
  if (priority.trim()) options.priority = Number(priority);
  if (time.trim()) options.time = time.trim();
  const words = Object.entries(options).map(([name, value]) => ` --${name} ${quote(String(value))}`);
  const action: Action = {
    name: "Change",
    title: `Change job ${job.id}`,
    about: "",
    command: `gjob update ${job.id}${words.join("")}`,
    isDestructive: false,
    run: () => change("/jobs/update", { jobs: [String(job.id)], options }, `Job ${job.id} is changed`),
  };
  return (
    <Confirmation action={action} onClose={onClose} isReady={words.length > 0}>
      <div class="fields">
        <label class="field">
          <span>Priority (now {job.priority})</span>
          <input inputMode="numeric" value={priority} onInput={(event) => setPriority(event.currentTarget.value)} />
        </label>
        <label class="field">
          <span>Time limit (now {job.time_limit_s ? duration(job.time_limit_s) : "none"})</span>
          <input placeholder="4:00:00" value={time} onInput={(event) => setTime(event.currentTarget.value)} />
        </label>
      </div>
    </Confirmation>
  );
}

/** What a user can do with all jobs of a sweep. */
export function groupActions(group: Group, isMine: boolean): Action[] {
  const id = String(group.id);
  const { waiting, held, running, failed } = group.counts;
  const active = waiting + held + running;
  const found: Action[] = [];
  if (isMine && failed) found.push(redoFailed(id, failed));
  if (waiting) {
    found.push({
      name: "Hold",
      title: `Hold ${jobCount(waiting, "waiting")} of ${id}`,
      about: "What waits keeps its place and does not start until it is released. Running jobs continue.",
      command: `gjob hold ${id}`,
      isDestructive: false,
      run: () => change("/jobs/hold", { jobs: [id] }, `The waiting jobs of ${id} are held`),
    });
  }
  if (held) {
    found.push({
      name: "Release",
      title: `Release ${jobCount(held, "held")} of ${id}`,
      about: "They may start from now on.",
      command: `gjob release ${id}`,
      isDestructive: false,
      run: () => change("/jobs/release", { jobs: [id] }, `The held jobs of ${id} are released`),
    });
  }
  if (active) {
    found.push({
      name: "Cancel",
      title: `Cancel ${jobCount(active, "")} of ${id}?`,
      about: running
        ? `${jobCount(running, "running")}: stopped, and killed after the grace time. Work since the last checkpoint is lost.`
        : "They leave the queue. Jobs that depend on them are cancelled too.",
      command: `gcancel ${id}`,
      isDestructive: true,
      run: () => change("/jobs/cancel", { jobs: [id] }, `The jobs of ${id} are being cancelled`),
    });
  }
  return found;
}

const jobCount = (count: number, state: string) => `${number(count)}${state && " "}${state} job${count > 1 ? "s" : ""}`;

export function GroupActions({ group, isMine }: { group: Group; isMine: boolean }) {
  return (
    <div class="actions">
      {groupActions(group, isMine).map((action) => (
        <ActionButton key={action.name} action={action} />
      ))}
    </div>
  );
}

/** `failed`: how many tasks of the job failed. */
export function Actions({ job, failed, isMine }: { job: Job; failed: number; isMine: boolean }) {
  const [isChanging, setChanging] = useState(false);
  return (
    <div class="actions">
      {!isFinal(job.state) && (
        <button type="button" onClick={() => setChanging(true)}>
          Change
        </button>
      )}
      {isChanging && <Change job={job} onClose={() => setChanging(false)} />}
      {isMine && job.tasks && <RedoTasks id={job.id} count={failed} />}
      {actionsOf(job, isMine).map((action) => (
        <ActionButton key={action.name} action={action} />
      ))}
    </div>
  );
}

interface ConfirmationProps {
  action: Action;
  onClose: () => void;
  isReady?: boolean;
  children?: ComponentChildren;
}

export function Confirmation({ action, onClose, isReady = true, children }: ConfirmationProps) {
  const [error, setError] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  const token = useRef(newToken());
  const run = async () => {
    setBusy(true);
    setError(null);
    try {
      await action.run(token.current);
      onClose();
    } catch (problem) {
      if (problem instanceof Problem) token.current = newToken();
      setError(problem instanceof Problem ? problem : new Problem(0, "", "the daemon does not answer", ""));
      setBusy(false);
    }
  };
  return (
    <Dialog title={action.title} onClose={onClose}>
      {action.about && <p>{action.about}</p>}
      {children}
      <CommandLine text={action.command} />
      {error && <Failure error={error} />}
      <div class="buttons">
        <button type="button" onClick={onClose}>
          Back
        </button>
        <button
          type="button"
          class={action.isDestructive ? "danger primary" : "primary"}
          disabled={isBusy || !isReady}
          onClick={() => void run()}
        >
          {action.name}
        </button>
      </div>
    </Dialog>
  );
}
