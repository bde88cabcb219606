// Usage: GPU-hours by day and user, efficiency, waits, and jobs that leave their GPUs unused.

import { useState } from "preact/hooks";
import { number, roughly, trim } from "../format";
import { setQuery, useResource } from "../hooks";
import { Badge, Bar, Failure, JobLink, Loading, Section, Text } from "../parts/ui";
import type { Figures, JobId, Me, State, Stats } from "../types";
import { DaysChart } from "./usage_days";

export interface GpuHours {
  gpu_hours: number;
  measured_gpu_hours: number;
  busy_gpu_hours: number;
}

interface Total extends GpuHours {
  name: string | null;
  started_jobs: number;
  median_wait_secs: number | null;
  p90_wait_secs: number | null;
}

export interface UsageDays {
  gpus: number;
  simulated: boolean;
  total: Total;
  days: (GpuHours & { day: string; groups: (GpuHours & { user: string; project: string | null })[] })[];
  by_user: Total[];
  by_project: Total[];
  idle_jobs: (GpuHours & { id: JobId; name: string; user: string; state: State })[];
}

// Rows of the list of jobs before the button for more.
const ROWS = 8;
const PERIODS: Record<string, string> = { "7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "year" };

export function PeoplePage({ query, me }: { query: URLSearchParams; me: Me | null }) {
  const since = query.get("since") ?? "30d";
  const all = useResource<UsageDays>(`/stats/days?all=1&since=${encodeURIComponent(since)}`);
  // Where usage is private, others' is refused: then the own is shown.
  const isPrivate = all.error?.status === 403;
  const scope = isPrivate ? "" : "all=1&";
  const own = useResource<UsageDays>(isPrivate ? `/stats/days?since=${encodeURIComponent(since)}` : null);
  const days = isPrivate ? own.data : all.data;
  const stats = useResource<Stats>(`/stats?${scope}since=${encodeURIComponent(since)}`).data;
  const error = isPrivate ? own.error : all.error;
  return (
    <>
      <div class="page-head">
        <h1>Usage</h1>
        <div class="tabs" role="group" aria-label="period">
          {Object.entries(PERIODS).map(([key, name]) => (
            <button type="button" aria-pressed={key === since} onClick={() => setQuery({ since: key })}>
              {name}
            </button>
          ))}
        </div>
      </div>
      {isPrivate && <div class="notice">Usage of other users is private here: this is yours{me ? `, ${me.user}` : ""}.</div>}
      {error && <Failure error={error} />}
      {!days && !error && <Loading />}
      {days && (
        <>
          <Totals days={days} stats={stats} />
          <Section title={`GPU-hours by day${days.simulated ? " (simulated GPUs)" : ""}`}>
            <DaysChart days={days} />
          </Section>
          <Section title="By user">
            <Table head="User" rows={days.by_user} figures={(row) => stats?.by_user.find((one) => one.user === row.name)} />
          </Section>
          <Section title="By project">
            <Table head="Project" rows={days.by_project} figures={(row) => stats?.by_project.find((one) => one.project === row.name)} />
          </Section>
          <IdleJobs days={days} />
        </>
      )}
    </>
  );
}

const efficiency = (one: GpuHours) => (one.measured_gpu_hours ? one.busy_gpu_hours / one.measured_gpu_hours : null);
const percent = (part: number | null) => (part === null ? "–" : `${Math.round(part * 100)} %`);
const wait = (secs: number | null) => (secs === null ? "–" : roughly(secs));

function Totals({ days, stats }: { days: UsageDays; stats: Stats | null }) {
  return (
    <dl class="summary">
      <Figure name="GPU-hours" value={trim(days.total.gpu_hours)} />
      <Figure name="GPUs busy while allocated" value={percent(efficiency(days.total))} />
      <Figure name="median wait" value={wait(days.total.median_wait_secs)} />
      <Figure name="90th-percentile (p90) wait" value={wait(days.total.p90_wait_secs)} />
      <Figure name="jobs started" value={number(days.total.started_jobs)} />
      {stats && <Figure name="of ended jobs succeeded" value={percent(stats.success_rate)} />}
    </dl>
  );
}

/** Jobs that had GPUs and used them for less than half of the time. */
function IdleJobs({ days }: { days: UsageDays }) {
  const [isAll, setAll] = useState(false);
  const isMeasured = days.total.measured_gpu_hours > 0;
  const shown = isAll ? days.idle_jobs : days.idle_jobs.slice(0, ROWS);
  return (
    <Section title="Jobs with idle GPUs">
      {!days.idle_jobs.length && (
        <p class="empty">
          {isMeasured ? "No job left its GPUs unused for most of its time." : "The use of the GPUs was not measured in this time."}
        </p>
      )}
      <ul class="list stacked">
        {shown.map((job) => (
          <li>
            <JobLink id={job.id} name={job.name} />
            <span class="end">
              <Text class="muted">{job.user}</Text>
              <span class="num">
                <b>{trim(job.measured_gpu_hours - job.busy_gpu_hours)}</b> of {trim(job.gpu_hours)} GPU-hours idle
              </span>
              <Badge state={job.state} />
            </span>
          </li>
        ))}
      </ul>
      {shown.length < days.idle_jobs.length && (
        <button type="button" onClick={() => setAll(true)}>
          Show all {days.idle_jobs.length}
        </button>
      )}
    </Section>
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

const HEADS = ["Busy", "Median wait", "p90 wait", "Started", "Failed", "Succeeded"];

function Table({ rows, head, figures }: { rows: Total[]; head: string; figures: (row: Total) => Figures | undefined }) {
  const most = Math.max(...rows.map((row) => row.gpu_hours), 0.001);
  if (!rows.length) return <p class="empty">No job ran in this time.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`usage by ${head.toLowerCase()}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">{head}</th>
            <th scope="col">GPU-hours</th>
            {HEADS.map((name) => (
              <th scope="col" class="num">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const more = figures(row);
            const name = row.name ?? "no project";
            return (
              <tr>
                <th scope="row">
                  <Text>{name}</Text>
                </th>
                <td>
                  <div class="with-bar">
                    <span class="num">{trim(row.gpu_hours)}</span>
                    <Bar value={row.gpu_hours / most} label={`GPU-hours of ${name}`} />
                  </div>
                </td>
                <td class="num">{percent(efficiency(row))}</td>
                <td class="num">{wait(row.median_wait_secs)}</td>
                <td class="num">{wait(row.p90_wait_secs)}</td>
                <td class="num">{number(row.started_jobs)}</td>
                <td class="num">{more ? number(more.failed_jobs + more.timeout_jobs) : "–"}</td>
                <td class="num">{more ? percent(more.success_rate) : "–"}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
