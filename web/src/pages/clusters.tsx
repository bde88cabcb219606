// Clusters: where jobs run, whether the controllers answer, and the jobs that are there.

import { useEffect } from "preact/hooks";
import { clock, full, number, roughly, seconds } from "../format";
import { useNow, useResource } from "../hooks";
import { A, Badge, Failure, JobLink, Loading, Section, Text } from "../parts/ui";
import type { Jobs } from "../types";
import { aboutJobs } from "./overview";
import { reasonText } from "./reasons";

interface Target {
  name: string;
  state: "here" | "unused" | "answers" | "down" | "no_commands";
  running: number;
  waiting: number;
  answered_at: string | null;
  error: string | null;
  partition: string | null;
  account: string | null;
}

const STATES: Record<Target["state"], { word: string; kind: string }> = {
  here: { word: "This machine", kind: "free" },
  unused: { word: "Not used yet", kind: "free" },
  answers: { word: "Answers", kind: "running" },
  down: { word: "Does not answer", kind: "blocked" },
  no_commands: { word: "No Slurm here", kind: "free" },
};

export function ClustersPage() {
  const found = useResource<{ targets: Target[] }>("/targets", aboutJobs);
  const tick = Math.floor(useNow(10_000) / 10_000);
  useEffect(found.reload, [tick]);
  if (found.error) return <Failure error={found.error} />;
  if (!found.data) return <Loading />;
  const clusters = found.data.targets.filter((one) => one.state !== "here");
  const isAlone = clusters.every((one) => one.state === "no_commands" && !one.running && !one.waiting);
  return (
    <>
      <div class="page-head">
        <h1>Clusters</h1>
      </div>
      {isAlone ? (
        <p class="empty">
          No Slurm cluster can be used from here: the daemon finds no <code>sbatch</code>. Start gflowd on a login node of the cluster;
          then <code>gbatch --on slurm</code> runs jobs there.
        </p>
      ) : (
        <Targets targets={found.data.targets} />
      )}
      {!isAlone && clusters.map((one) => <Queue target={one} />)}
    </>
  );
}

function Targets({ targets }: { targets: Target[] }) {
  const now = useNow(10_000);
  return (
    <div class="columns">
      {targets.map((one) => (
        <Section title={one.name} more={<span class={`pill is-${STATES[one.state].kind}`}>{STATES[one.state].word}</span>}>
          <dl class="facts">
            <Fact name="Jobs" text={`${number(one.running)} running, ${number(one.waiting)} waiting`} />
            {one.answered_at && (
              <Fact
                name="Last answer"
                text={one.state === "down" ? clock(one.answered_at) : `${roughly(now / 1000 - seconds(one.answered_at))} ago`}
                title={full(one.answered_at)}
              />
            )}
            {one.state === "down" && !one.answered_at && <Fact name="Last answer" text="none since the daemon started" />}
            {one.error && <Fact name="Error" text={one.error} />}
            {one.partition && <Fact name="Partition" text={one.partition} />}
            {one.account && <Fact name="Account" text={one.account} />}
          </dl>
          {one.state === "down" && <p class="muted">Jobs for it are kept and sent as soon as it answers.</p>}
          {one.state === "unused" && (
            <p class="muted">
              <code>gbatch --on {one.name}</code> runs a job there.
            </p>
          )}
        </Section>
      ))}
    </div>
  );
}

function Fact({ name, text, title }: { name: string; text: string; title?: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd title={title}>
        <Text>{text}</Text>
      </dd>
    </div>
  );
}

function Queue({ target }: { target: Target }) {
  const jobs = useResource<Jobs>(`/jobs?targets=${encodeURIComponent(target.name)}&limit=50`, aboutJobs);
  if (!jobs.data?.jobs.length) return null;
  return (
    <Section title={`Jobs on ${target.name}`} more={<A to="jobs">All jobs</A>}>
      <ul class="list">
        {jobs.data.jobs.map((job) => (
          <li>
            <JobLink id={job.id} name={job.name} />
            <span class="end">
              <Text class="muted">{job.user}</Text>
              {job.target_id && <span class="muted">Slurm {job.target_id}</span>}
              {job.target_nodes && <Text class="muted">{job.target_nodes}</Text>}
              <Badge state={job.state} stopping={job.stopping} />
            </span>
            {job.reason && <Text class="why muted">{reasonText(job)}</Text>}
          </li>
        ))}
      </ul>
    </Section>
  );
}
