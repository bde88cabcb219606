// The gbatch command line of a job.

import { quote, shell } from "../format";
import type { Job } from "../types";

const MIB = new Set(["memory", "gpu-memory"]);
const SECONDS = new Set(["time", "grace", "stop-if-idle"]);
// Options that the command line has in another form, or that belong to the job's own copy.
const LEFT_OUT = new Set(["param", "hold", "name", "begin", "depends-on", "depends-on-any"]);

export function hours(seconds: number): string {
  const rest = (value: number) => String(value).padStart(2, "0");
  return `${Math.floor(seconds / 3600)}:${rest(Math.floor((seconds % 3600) / 60))}:${rest(seconds % 60)}`;
}

export function optionWords(name: string, value: unknown): string[] {
  if (value === true) return [`--${name}`];
  if (value === false || value === null || value === "" || value === undefined) return [];
  if (typeof value === "number" && MIB.has(name)) return [`--${name}`, `${value}M`];
  if (typeof value === "number" && SECONDS.has(name)) return [`--${name}`, hours(value)];
  if (Array.isArray(value)) return [`--${name}`, value.join(",")];
  return typeof value === "object" ? [] : [`--${name}`, String(value)];
}

export function gbatchLine(job: Job): string {
  const words = ["gbatch", "--name", job.name];
  if (job.depends_on.length) words.push("--depends-on", job.depends_on.join(","));
  for (const [name, value] of Object.entries(job.asked)) {
    if (name === "array" && job.task_id !== null) words.push("--array", String(job.task_id));
    else if (!LEFT_OUT.has(name)) words.push(...optionWords(name, value));
  }
  const command = job.script ? [job.script, ...job.command] : job.command;
  return `cd ${quote(job.cwd)} && ${shell([...words, ...command])}`;
}
