// The first view: GPUs as tiles, what runs, what starts next, what ended.

import { useState } from "preact/hooks";
import { clock, full, number, roughly, seconds, trim } from "../format";
import { useNow, useReadings, useResource } from "../hooks";
import { A, Badge, Bar, Failure, JobLink, JobProgress, Loading, Section, Text } from "../parts/ui";
import { gather, TaskBar } from "./groups";
import { reasonText } from "./reasons";
import type { Gpu, Happening, Job, Me, Starts } from "../types";

export const aboutJobs = (event: Happening) => event.event.startsWith("job_");
export const aboutGpus = (event: Happening) =>
  ["gpu_availability_changed", "gpu_health_changed", "drain_changed", "job_progress", "job_gpu_idle"].includes(
    event.event,
  );

// Rows in each list, and of what needs attention.
const ROWS = 8;
const URGENT = 4;

interface Attention {
  kind: "daemon" | "disk" | "drained" | "gpu" | "failed" | "idle";
  text: string;
  hint: string;
  jobs: Job["id"][];
}

interface Glance {
  gpus: Gpu[];
  running: number;
  waiting: number;
  cpu_total: number;
  cpu_available: number;
  memory_total_mib: number;
  memory_available_mib: number;
  attention: Attention[];
  lists: { running: Job[]; waiting: Job[]; starts: Starts["starts"]; ended: Job[] };
}

export function Overview({ me }: { me: Me | null }) {
  const found = useResource<Glance>(`/overview?lists=${ROWS}`, (event) => aboutJobs(event) || aboutGpus(event));
  const now = useReadings();
  if (found.error) return <Failure error={found.error} />;
  if (!found.data) return <Loading />;
  const { lists, attention } = found.data;
  const live = lists.running.map((job) => ({ ...job, progress: now.jobs.get(job.id) ?? job.progress }));
  const jobs = new Map(live.map((job) => [job.id, job]));
  const gpus = found.data.gpus.map((gpu) => ({ ...gpu, ...now.gpus.get(gpu.index) }));
  const hasUsers = me?.system ?? false;
  return (
    <>
      <h1 class="hidden">Overview</h1>
      <Summary found={found.data} gpus={gpus} />
      {attention.length > 0 && <NeedsAttention attention={attention} />}
      <ul class="tiles" aria-label="GPUs">
        {gpus.map((gpu) => (
          <Tile gpu={gpu} jobs={jobs} />
        ))}
      </ul>
      <div class="columns">
        <Section title="Running" more={<A to="jobs?state=running">All {number(found.data.running)}</A>}>
          <Running jobs={live} hasUsers={hasUsers} />
        </Section>
        <Section title="Waiting" more={<A to="jobs?state=waiting">All {number(found.data.waiting)}</A>}>
          <Next starts={lists.starts} waiting={lists.waiting} hasUsers={hasUsers} />
        </Section>
        <Section title="Recently ended" more={<A to="jobs?state=ended">All ended jobs</A>}>
          <Ended jobs={byEnd(lists.ended)} hasUsers={hasUsers} />
        </Section>
      </div>
    </>
  );
}

const spell = (text: string) =>
  text.replace(/\) ended: ExitCode/, ") failed: ExitCode").replace(/ExitCode:(\d+)/, "exit code $1").replace(/: TimeLimit\b/, ": time limit");
const byEnd = (jobs: Job[]) => [...jobs].sort((a, b) => (b.finished_at ?? "").localeCompare(a.finished_at ?? ""));

/** What needs a look: drains, faults, failed jobs of the user, unused GPUs; each with the command to type next. */
function NeedsAttention({ attention }: { attention: Attention[] }) {
  const [isAll, setAll] = useState(false);
  const shown = isAll ? attention : attention.slice(0, URGENT);
  return (
    <Section title="Needs attention" class="attention">
      <ul class="list stacked">
        {shown.map((one) => (
          <li class={`is-${one.kind}`}>
            {one.jobs.length ? (
              <A to={`jobs/${one.jobs[0]}`}>
                <Text>{spell(one.text)}</Text>
              </A>
            ) : (
              <Text>{spell(one.text)}</Text>
            )}
            <code class="muted">{one.hint}</code>
          </li>
        ))}
      </ul>
      {attention.length > shown.length && (
        <button type="button" class="quiet" onClick={() => setAll(true)}>
          Show all {attention.length}
        </button>
      )}
    </Section>
  );
}

function Summary({ found, gpus }: { found: Glance; gpus: Gpu[] }) {
  const used = gpus.filter((gpu) => gpu.holders.length).length;
  const busy = gpus.filter((gpu) => gpu.utilisation != null);
  const mean = busy.reduce((sum, gpu) => sum + (gpu.utilisation ?? 0), 0) / (busy.length || 1);
  return (
    <dl class="summary">
      <Figure name="GPUs in use" value={`${used} of ${gpus.length}`} />
      {busy.length > 0 && <Figure name="mean GPU utilisation" value={`${Math.round(mean)} %`} />}
      <Figure name="jobs running" value={number(found.running)} />
      <Figure name="jobs waiting" value={number(found.waiting)} />
      <Figure name="CPU slots free" value={`${found.cpu_available} of ${found.cpu_total}`} />
      <Figure name="host memory free" value={`${trim(found.memory_available_mib / 1024)} of ${trim(found.memory_total_mib / 1024)} GiB`} />
    </dl>
  );
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dd class="num">{value}</dd>
      <dt>{name}</dt>
    </div>
  );
}

function shortModel(model: string): string {
  return model.replace(/^NVIDIA\s+/i, "").replace(/^GeForce\s+/i, "");
}

/** The reservation of the GPU that has begun. */
export function reservationOf(gpu: Gpu): Gpu["reserved"][0] | undefined {
  const now = Date.now() / 1000;
  return gpu.reserved.find((one) => seconds(one.start) <= now && now < seconds(one.end));
}

export function gpuState(gpu: Gpu): { word: string; kind: string } {
  if (gpu.holders.length) {
    const isUnused = gpu.utilisation === 0;
    return isUnused ? { word: "Allocated, idle", kind: "wasted" } : { word: "In use", kind: "running" };
  }
  if (gpu.reason) return { word: gpu.reason.split(":")[0] ?? "Blocked", kind: "blocked" };
  if (reservationOf(gpu)) return { word: "Reserved", kind: "reserved" };
  return { word: "Free", kind: "free" };
}

function Tile({ gpu, jobs }: { gpu: Gpu; jobs: Map<Job["id"], Job> }) {
  const state = gpuState(gpu);
  const now = useNow(10_000);
  const reserved = reservationOf(gpu);
  return (
    <li class={`tile is-${state.kind}`}>
      <header>
        <A to={`machine#gpu-${gpu.index}`} class="gpu-name">
          GPU {gpu.index}
        </A>
        <Text class="muted model">{shortModel(gpu.model)}</Text>
        <span class={`pill is-${state.kind}`}>{state.word}</span>
      </header>
      {gpu.utilisation != null && (
        <Meter name="utilisation" value={gpu.utilisation / 100} text={`${gpu.utilisation} %`} label={`utilisation of GPU ${gpu.index}`} />
      )}
      <MemoryMeter gpu={gpu} />
      <p class="readings muted">
        {gpu.temperature != null && <span>{gpu.temperature} °C</span>}
        {gpu.power_w != null && <span>{Math.round(gpu.power_w)} W</span>}
        {gpu.slowed?.map((why) => <span class="warn">slowed by {why}</span>)}
      </p>
      {gpu.holders.map((holder) => {
        const job = holder.id === null ? undefined : jobs.get(holder.id);
        return (
          <div class="holder">
            {holder.id === null ? <span>{holder.name}</span> : <JobLink id={holder.id} name={holder.name} />}
            <span class="muted">
              <Text>{holder.user}</Text>
            </span>
            {job && <JobProgress job={job} />}
          </div>
        );
      })}
      {reserved && (
        <p class="muted" title={full(reserved.end)}>
          Reserved for <Text>{reserved.user}</Text> until {clock(reserved.end, now)}
        </p>
      )}
      {!gpu.holders.length && !gpu.reason && !reserved && gpu.idle_s !== null && (
        <p class="muted">
          Free for {gpu.idle_s_at_least ? "at least " : ""}
          {roughly(gpu.idle_s)}
        </p>
      )}
      {!gpu.holders.length && gpu.reason && (
        <p class="muted">
          <Text>{gpu.reason}</Text>
        </p>
      )}
      {gpu.free_at && (
        <p class="muted" title={full(gpu.free_at)}>
          Free by {clock(gpu.free_at, now)} at the latest
        </p>
      )}
      {gpu.processes.map((one) => (
        <p class="muted">
          Process {one.pid} of <Text>{one.user}</Text>
        </p>
      ))}
    </li>
  );
}

function MemoryMeter({ gpu }: { gpu: Gpu }) {
  const total = `${trim(gpu.memory_mib / 1024)} GiB`;
  const booked = gpu.holders.reduce((sum, holder) => sum + (holder.limit_mib ?? 0), 0);
  if (gpu.used_mib !== null) {
    const text = `${trim(gpu.used_mib / 1024)} of ${total}`;
    return <Meter name="memory" value={gpu.used_mib / gpu.memory_mib} text={text} label={`memory of GPU ${gpu.index}`} />;
  }
  const text = booked ? `${trim(booked / 1024)} of ${total} booked` : total;
  return <Meter name="memory" value={booked / gpu.memory_mib} text={text} label={`booked memory of GPU ${gpu.index}`} />;
}

export function Meter({ name, value, text, label }: { name: string; value: number; text: string; label: string }) {
  return (
    <div class="meter">
      <span class="muted">{name}</span>
      <Bar value={value} label={label} />
      <span class="num">{text}</span>
    </div>
  );
}

function Running({ jobs, hasUsers }: { jobs: Job[]; hasUsers: boolean }) {
  const now = useNow();
  if (!jobs.length)
    return (
      <p class="empty">
        Nothing runs. A first job: <code>gbatch --gpus 1 python train.py</code>, or the button at the top.
      </p>
    );
  return (
    <ul class="list">
      {gather(jobs, new Set())
        .slice(0, ROWS)
        .map(({ job, members, title, link }) => (
          <li>
            <RowLink job={job} title={title} link={link} />
            <span class="end">
              {hasUsers && <Text class="muted">{job.user}</Text>}
              {members && <span class="muted">{members.tasks.length} jobs</span>}
              {!members && job.stopping && <Badge state={job.state} stopping />}
              {!members && job.progress?.percent != null ? (
                <JobProgress job={job} />
              ) : (
                <span class="num muted">{job.started_at ? roughly(now / 1000 - seconds(job.started_at)) : ""}</span>
              )}
            </span>
          </li>
        ))}
    </ul>
  );
}

function Next({ starts, waiting, hasUsers }: { starts: Starts["starts"]; waiting: Job[]; hasUsers: boolean }) {
  const startAt = new Map(starts.map((one) => [one.id, one.expected_at]));
  if (!waiting.length) return <p class="empty">Nothing waits.</p>;
  return (
    <ul class="list">
      {firstOfEachSweep(waiting)
        .slice(0, ROWS)
        .map((job) => (
          <NextRow job={job} at={startAt.get(job.id) ?? null} hasUsers={hasUsers} />
        ))}
    </ul>
  );
}

/** Jobs of a sweep are one row, at the place of the first. */
function firstOfEachSweep(jobs: Job[]): Job[] {
  const seen = new Set<number>();
  return jobs.filter((job) => job.group_id === null || (!seen.has(job.group_id) && seen.add(job.group_id)));
}

function NextRow({ job, at, hasUsers }: { job: Job; at: string | null; hasUsers: boolean }) {
  return (
    <li>
      <RowLink job={job} title={`g${job.group_id}`} link={job.group_id === null ? undefined : `sweeps/g${job.group_id}`} />
      <span class="end">
        {hasUsers && <Text class="muted">{job.user}</Text>}
        {job.gpus > 0 && <span class="muted">{job.gpus} GPU{job.gpus > 1 ? "s" : ""}</span>}
        {at ? <span class="num" title={full(at)}>starts about {clock(at)}</span> : <Badge state={job.state} />}
      </span>
      {job.reason && <Text class="why muted">{reasonText(job)}</Text>}
    </li>
  );
}

/** A link to a job, or to the array or sweep that its row stands for. */
function RowLink({ job, title, link }: { job: Job; title: string | undefined; link: string | undefined }) {
  if (!link) return <JobLink id={job.id} name={job.name} />;
  return (
    <A to={link} class="job-link">
      <span class="id">{title}</span>
      <Text class="name">{job.name}</Text>
    </A>
  );
}

function Ended({ jobs, hasUsers }: { jobs: Job[]; hasUsers: boolean }) {
  if (!jobs.length) return <p class="empty">No job has ended yet.</p>;
  return (
    <ul class="list">
      {gather(jobs, new Set())
        .slice(0, ROWS)
        .map(({ job, members, title, link }) => (
          <li>
            <RowLink job={job} title={title} link={link} />
            <span class="end">
              {hasUsers && <Text class="muted">{job.user}</Text>}
              <span class="num muted">{clock(job.finished_at)}</span>
              {members ? <span class="muted">{members.tasks.length} jobs</span> : <Badge state={job.state} />}
            </span>
            {members ? (
              <span class="why">
                <TaskBar members={members} />
              </span>
            ) : (
              job.state !== "Finished" && <Text class="why muted">{reasonText(job)}</Text>
            )}
          </li>
        ))}
    </ul>
  );
}
