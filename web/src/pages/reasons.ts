// Reasons in words. A reason of the daemon is a code, and perhaps a detail: `Resources: Need 4 GPUs, only 1 available`.

import { clock } from "../format";
import type { Happening, Job } from "../types";

/** Whether an event is about a job, or about a task of it. */
export const concerns = (id: string) => (event: Happening) =>
  event.job_id !== null && (String(event.job_id) === id || String(event.job_id).startsWith(`${id}_`));

const WAITS: Record<string, string> = {
  Resources: "Not enough resources are free",
  Dependency: "Waits for the jobs that it depends on",
  BeginTime: "Waits for its begin time",
  Quota: "A quota is reached",
  Reservation: "GPUs are reserved for another user",
  Priority: "Jobs before it go first",
  JobHeldUser: "Held until it is released",
  JobHeldAdmin: "Held by an operator",
  Requeued: "Goes on after a pause",
  Retry: "Is tried again after a pause",
  RetryDelay: "Is tried again after a pause",
  RequeueLoop: "Held, because it ended at once several times",
  JobArrayTaskLimit: "As many tasks run as the array allows",
  Drained: "The machine is drained",
};

/** A sentence after a colon; `GPU` and other words in capitals stay as they are. */
const inSentence = (text: string) => (/^[A-Z][a-z]/.test(text) ? text[0]!.toLowerCase() + text.slice(1) : text);

export function waitText(code: string, detail: string): string {
  const words = WAITS[code];
  if (!words) return detail ? `${code}: ${detail}` : code;
  return detail ? `${words}: ${inSentence(detail)}` : words;
}

/** The reason of a job for lists: in words, and short. */
export function reasonText(job: Job): string {
  const reason = job.reason ?? "";
  if (job.state === "Queued" || job.state === "Hold") {
    const [code, ...rest] = reason.split(": ");
    const detail = rest.join(": ");
    if (code === "Resources" && detail) return detail;
    if (code === "Dependency" && !detail && job.depends_on.length) return `Waits for job ${job.depends_on.join(", ")}`;
    if (code === "BeginTime" && job.begin_at) return `Begins ${clock(job.begin_at)}`;
    return waitText(code ?? "", detail);
  }
  return job.state === "Finished" ? "" : endText(job);
}

const ENDS: Record<string, string> = {
  OutOfMemory: "Out of host memory",
  GpuMemory: "Used more GPU memory than it had booked",
  TimeLimit: "Reached its time limit",
  Lost: "Its processes vanished",
  Reboot: "The machine rebooted",
  IdleGPU: "Left its GPUs unused",
  StartFailed: "Could not be started",
  NodeFail: "Its node failed",
  Preempted: "Made way for another job",
  TasksFailed: "Tasks failed",
  TasksCancelled: "Tasks were cancelled",
  DependencyFailed: "A job that it depends on did not finish",
  CancelledByUser: "Cancelled",
};

export function endText(job: Pick<Job, "state" | "reason" | "exit_code">): string {
  const reason = job.reason ?? "";
  const exit = /^ExitCode:(\d+)$/.exec(reason)?.[1] ?? (reason ? null : job.exit_code);
  if (exit !== null && exit !== undefined) return `Exit code ${exit}`;
  const signal = /^Signal:(.+)$/.exec(reason)?.[1];
  if (signal) return `Killed by signal ${signal}`;
  const [code = "", ...rest] = reason.split(/:\s?/);
  const words = ENDS[code];
  if (!words) return reason || job.state;
  return rest.length ? `${words}: ${rest.join(": ")}` : words;
}

export function endHint(job: Job): string {
  const code = (job.reason ?? "").split(":")[0] ?? "";
  const hints: Record<string, string> = {
    OutOfMemory: "Ask for more with --memory, or load less at once.",
    GpuMemory: "Ask for more with --gpu-memory.",
    TimeLimit: "A longer limit: gjob redo with --time.",
    ExitCode: "The log has the cause; “First error” jumps to the first line that looks like one.",
  };
  return hints[code] ?? "";
}
