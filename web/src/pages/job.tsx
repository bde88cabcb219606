// One job: what it is, why it waits or ended, how it runs, its log, and how to repeat it.

import { useState } from "preact/hooks";
import { clock, duration, full, memory, seconds, shell } from "../format";
import { useNow, useReadings, useResource } from "../hooks";
import type { Shown } from "../job_types";
import { Actions } from "../parts/actions";
import { Log } from "../parts/log";
import { A, Badge, CommandLine, Fact, Failure, JobLink, Loading, Section, Text } from "../parts/ui";
import type { Job, Me } from "../types";
import { Attempts, HistorySection } from "./attempts";
import { gbatchLine } from "./command";
import { Dependencies } from "./dependencies";
import { RunSection } from "./job_run";
import { concerns } from "./reasons";
import { TasksSection } from "./tasks";
import { Verdict } from "./verdict";

export function JobPage({ id, me }: { id: string; me: Me | null }) {
  const path = `/jobs/${encodeURIComponent(id)}`;
  const found = useResource<Shown>(`${path}?tasks=0`, concerns(id));
  const live = useReadings().jobs;
  const [wanted, setWanted] = useState<{ offset: number } | null>(null);
  const stored = found.data?.jobs[0];
  const job = stored && { ...stored, progress: live.get(stored.id) ?? stored.progress };
  if (found.error && !job) return <Failure error={found.error} />;
  if (!job) return <Loading />;
  const isMine = me !== null && (!me.system || me.user === job.user);
  const group = found.data?.group ?? null;
  const isArray = job.tasks !== null;
  const hasRun = isArray || job.attempt > 0;
  const past = isMine && (
    <>
      <HistorySection path={path} id={id} />
      <Section title={hasRun ? "Run it again" : "Submit a copy"}>
        <p class="muted">With the same environment:</p>
        <CommandLine text={`gjob redo ${job.id}`} />
        <p class="muted">With the environment of your shell:</p>
        <CommandLine text={gbatchLine(job)} />
      </Section>
    </>
  );
  return (
    <>
      <div class="page-head">
        <h1>
          <span class="id">{job.id}</span> <Text>{job.name}</Text>
        </h1>
        <Badge state={job.tasks?.active ? "Running" : job.state} stopping={job.stopping} />
        {(isMine || me?.operator) && <Actions job={job} failed={group?.counts.failed ?? 0} isMine={isMine} />}
      </div>
      <Verdict job={job} path={path} group={group} isMine={isMine} onLine={(offset) => setWanted({ offset })} />
      <div class="columns job-columns">
        <div>
          <Section title="Details">
            <Facts job={job} />
          </Section>
          <Dependencies job={job} path={path} />
          {hasRun && past}
        </div>
        <div class={hasRun ? "first-on-phones" : ""}>
          {!hasRun && past}
          {isArray && group ? <TasksSection job={job} group={group} isMine={isMine} /> : <RunSection job={job} path={path} isMine={isMine} />}
          {isMine && job.attempt > 1 && <Attempts path={path} id={id} />}
          {!isArray && isMine && job.attempt > 0 && (
            <Section title="Log" class="wide">
              <Log id={job.id} isRunning={job.state === "Running"} wanted={wanted} />
            </Section>
          )}
        </div>
      </div>
    </>
  );
}

function Facts({ job }: { job: Job }) {
  const now = useNow();
  const ran = job.state === "Running" && job.started_at ? now / 1000 - seconds(job.started_at) : job.ran_s;
  const command = job.command.length ? shell(job.command) : "";
  return (
    <dl class="facts">
      <Fact name="Command" value={job.script ? `${job.script} ${command}`.trim() : command} isCode />
      <Fact name="Directory" value={job.cwd} isCode />
      <Fact name="User" value={job.user} />
      <Fact name="Project" value={job.project} />
      <Fact name="GPUs" value={gpusText(job)} />
      <Fact name="CPU slots" value={job.cpus ? String(job.cpus) : null} />
      <Fact name="Memory" value={job.memory_mib ? memory(job.memory_mib) : null} />
      <Fact name="Priority" value={job.priority === 10 ? null : String(job.priority)} />
      <Fact name="Parameters" value={Object.entries(job.parameters).map(([name, value]) => `${name}=${value}`).join(" ")} isCode />
      <Fact name="Submitted" value={clock(job.submitted_at, now)} title={full(job.submitted_at)} />
      <Fact name="Begins" value={clock(job.begin_at, now)} />
      <Fact name="Started" value={clock(job.started_at, now)} title={full(job.started_at)} />
      <Fact name="Ended" value={clock(job.finished_at, now)} title={full(job.finished_at)} />
      <Fact name="Run time" value={ran === null ? null : duration(ran)} />
      <Fact name="Time limit" value={job.time_limit_s ? duration(job.time_limit_s) : null} />
      <Fact name="Attempt" value={job.attempt > 1 ? `${job.attempt} (${job.retries} of ${job.max_retries} retries)` : null} />
      <Fact name="CPU time" value={job.cpu_time_s === null ? null : duration(job.cpu_time_s)} />
      <Fact name="Peak memory" value={job.peak_memory_mib === null ? null : memory(job.peak_memory_mib)} />
      <Fact name="Runs on" value={job.target === "local" ? null : [job.target, job.target_id, job.target_nodes].filter(Boolean).join(" ")} />
      <Fact name="Comment" value={job.comment} />
      {job.redone_from !== null && (
        <div>
          <dt>Repeats</dt>
          <dd>
            <JobLink id={job.redone_from} />
          </dd>
        </div>
      )}
      {job.group_id !== null && (
        <div>
          <dt>Part of</dt>
          <dd>
            <A to={`sweeps/g${job.group_id}`}>sweep g{job.group_id}</A>
          </dd>
        </div>
      )}
      {job.task_id !== null && job.array_id !== null && (
        <div>
          <dt>Part of</dt>
          <dd>
            <A to={`jobs/${job.array_id}`}>array {job.array_id}</A>
          </dd>
        </div>
      )}
    </dl>
  );
}

function gpusText(job: Job): string | null {
  if (!job.gpus) return null;
  const which = job.gpu_ids.length ? ` (GPU ${job.gpu_ids.join(", ")})` : "";
  const share = job.shared && job.gpu_memory_mib ? `, shared, ${memory(job.gpu_memory_mib)} each` : "";
  return `${job.gpus}${which}${share}`;
}
