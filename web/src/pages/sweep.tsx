// A sweep: how far it is, its runs by parameter, the metric that they reported, the best run, and what failed.

import { useMemo, useState } from "preact/hooks";
import { number, roughly, significant } from "../format";
import { navigate, setQuery, useResource } from "../hooks";
import type { Group, RankedJob, Result, Results } from "../job_types";
import { GroupActions } from "../parts/actions";
import { A, Badge, Failure, JobLink, Loading, Section, Text } from "../parts/ui";
import { Windowed } from "../parts/window";
import type { JobId, Me } from "../types";
import { countedMembers, HeatMap, TaskBar } from "./groups";
import { aboutJobs } from "./overview";
import { Parallel } from "./parallel";
import { endText } from "./reasons";
import { GroupEnd } from "./tasks";

// Metrics of which more is better.
const HIGH = /acc|score|f1|auc|map|bleu|rouge|reward|precision|recall|iou|throughput|samples/i;
// Runs that are loaded: more do not fit into a plot.
const MOST = 5000;
const ROW = 34;

export function SweepPage({ id, query, me }: { id: string; query: URLSearchParams; me: Me | null }) {
  const runs = useResource<Results>(`/jobs?all=1&jobs=${encodeURIComponent(id)}&form=results-json&limit=${MOST}`, aboutJobs);
  const results = runs.data?.results ?? [];
  const metrics = useMemo(() => metricsOf(results), [runs.data]);
  const metric = query.get("metric") ?? (metrics.includes("loss") ? "loss" : (metrics[0] ?? "loss"));
  const isHighBest = (query.get("best") ?? (HIGH.test(metric) ? "high" : "low")) === "high";
  const words = `metric=${encodeURIComponent(metric)}${isHighBest ? "&highest=1" : ""}`;
  const found = useResource<Group>(runs.data ? `/groups/${encodeURIComponent(id)}?${words}` : null, aboutJobs);
  const [hot, setHot] = useState<JobId | null>(null);
  if (runs.error) return <Failure error={runs.error} />;
  if (found.error && !found.data) return <Failure error={found.error} />;
  if (!runs.data || !found.data) return <Loading />;
  const group = found.data;
  const members = countedMembers(group.total, group.counts, results);
  const parameters = Object.keys(group.parameters);
  const isMine = me !== null && (!me.system || me.user === group.user);
  return (
    <>
      <div class="page-head">
        <h1>
          <span class="id">{group.id}</span> <Text>{group.name}</Text>
        </h1>
        <GroupEnd group={group} />
        {(isMine || me?.operator) && <GroupActions group={group} isMine={isMine} />}
      </div>
      <Failed group={group} />
      <Section title={`Runs (${number(group.total)})`} more={<Best group={group} />}>
        <TaskBar members={members} />
        {results.length <= 600 && <HeatMap members={members} chosen={null} onChoose={(job) => navigate(`jobs/${job}`)} />}
      </Section>
      {metrics.length > 0 && parameters.length > 0 && (
        <Section title="By parameter" more={<Choice metrics={metrics} metric={metric} isHighBest={isHighBest} />}>
          <Parallel results={results} parameters={parameters} metric={metric} isHighBest={isHighBest} best={group.best?.id ?? null} hot={hot} />
        </Section>
      )}
      <RunTable results={results} parameters={parameters} metrics={metrics} metric={metric} isHighBest={isHighBest} best={group.best} onHot={setHot} />
    </>
  );
}

const metricsOf = (results: Result[]) => [...new Set(results.flatMap((one) => Object.keys(one.metrics)))].sort();

function Best({ group }: { group: Group }) {
  if (!group.best) return null;
  const given = Object.entries(group.best.parameters).filter(([name]) => name in group.parameters);
  return (
    <span>
      best: <A to={`jobs/${group.best.id}`}>{group.best.id}</A> with {group.metric} <b>{significant(group.best.value)}</b>
      <span class="muted">
        {" "}
        <Text>{given.map(([name, value]) => `${name}=${value}`).join(" ")}</Text>
      </span>
    </span>
  );
}

function Choice({ metrics, metric, isHighBest }: { metrics: string[]; metric: string; isHighBest: boolean }) {
  return (
    <label class="field-inline">
      metric{" "}
      <select value={metric} onChange={(event) => setQuery({ metric: event.currentTarget.value, best: "" })}>
        {metrics.map((name) => (
          <option value={name}>{name}</option>
        ))}
      </select>{" "}
      <select value={isHighBest ? "high" : "low"} aria-label="which is best" onChange={(event) => setQuery({ best: event.currentTarget.value })}>
        <option value="low">lowest is best</option>
        <option value="high">highest is best</option>
      </select>
    </label>
  );
}

function Failed({ group }: { group: Group }) {
  const count = group.counts.failed;
  if (!count) return null;
  return (
    <div class="verdict is-failed">
      <p>
        <strong>{count === 1 ? "1 run failed" : `${number(count)} runs failed`}</strong>
        {count > group.failed_jobs.length && <span class="muted"> (the first {group.failed_jobs.length} are listed)</span>}
      </p>
      <ul>
        {group.failed_jobs.map((job) => (
          <li>
            <A to={`jobs/${job.id}`}>{job.id}</A>{" "}
            <Text>{Object.entries(job.parameters).map(([name, value]) => `${name}=${value}`).join(" ")}</Text>: <Text>{endText(job)}</Text>
          </li>
        ))}
      </ul>
    </div>
  );
}

interface TableProps {
  results: Result[];
  parameters: string[];
  metrics: string[];
  metric: string;
  isHighBest: boolean;
  best: RankedJob | null;
  onHot: (id: JobId | null) => void;
}

/** The runs, best first, or by a column. Only the rows in view are drawn. */
function RunTable({ results, parameters, metrics, metric, isHighBest, best, onHot }: TableProps) {
  const [order, setOrder] = useState<{ by: string; isDown: boolean } | null>(null);
  const rows = useMemo(
    () => sorted(results, order ?? { by: `m ${metric}`, isDown: isHighBest }),
    [results, order, metric, isHighBest],
  );
  const columns = [
    { key: "id", name: "Job", isNumber: false },
    { key: "state", name: "State", isNumber: false },
    ...parameters.map((name) => ({ key: `p ${name}`, name, isNumber: false })),
    ...metrics.map((name) => ({ key: `m ${name}`, name, isNumber: true })),
    { key: "time", name: "Time", isNumber: true },
  ];
  const by = order?.by ?? `m ${metric}`;
  const isDown = order ? order.isDown : isHighBest;
  const template = `grid-template-columns: 90px 110px ${parameters.map(() => "minmax(70px, 1fr)").join(" ")} ${metrics.map(() => "minmax(80px, 1fr)").join(" ")} 70px`;
  return (
    <div class="scroll">
      <div class="table runs" role="table" aria-label="runs" aria-rowcount={rows.length + 1} style={`min-width: ${(columns.length - 1) * 90}px`}>
        <div class="row head" role="row" style={template}>
          {columns.map((column) => (
            <span role="columnheader" class={column.isNumber ? "num" : ""} aria-sort={by === column.key ? (isDown ? "descending" : "ascending") : "none"}>
              <button type="button" class="quiet" onClick={() => setOrder({ by: column.key, isDown: by === column.key && !isDown })}>
                <Text>{column.name}</Text>
                {by === column.key ? (isDown ? " ↓" : " ↑") : ""}
              </button>
            </span>
          ))}
        </div>
        <Windowed
          count={rows.length}
          height={ROW}
          label="runs"
          row={(index) => {
            const run = rows[index] as Result;
            const isBest = run.id === best?.id;
            return (
              <div
                key={run.id}
                class={`row ${isBest ? "is-best" : ""}`}
                role="row"
                style={template}
                onMouseEnter={() => onHot(run.id)}
                onMouseLeave={() => onHot(null)}
                onFocusIn={() => onHot(run.id)}
              >
                <span role="cell">
                  <JobLink id={run.id} />
                  {isBest && <span class="best-mark"> best</span>}
                </span>
                <span role="cell">
                  <Badge state={run.state} />
                </span>
                {parameters.map((name) => (
                  <span role="cell">
                    <Text>{run.parameters[name] ?? ""}</Text>
                  </span>
                ))}
                {metrics.map((name) => (
                  <span role="cell" class="num">
                    {run.metrics[name] === undefined ? "" : significant(run.metrics[name] as number)}
                  </span>
                ))}
                <span role="cell" class="num">
                  {run.run_s === null ? "" : roughly(run.run_s)}
                </span>
              </div>
            );
          }}
        />
      </div>
    </div>
  );
}

/** Runs by a column; those without a value are last. */
function sorted(results: Result[], { by, isDown }: { by: string; isDown: boolean }): Result[] {
  const name = by.slice(2);
  const read = (run: Result): string | number | null => {
    if (by === "id") return Number(run.id);
    if (by === "state") return run.state;
    if (by === "time") return run.run_s;
    if (by.startsWith("m ")) return run.metrics[name] ?? null;
    const value = run.parameters[name] ?? null;
    return value !== null && value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
  };
  const keyed = results.map((run) => ({ run, value: read(run) }));
  const less = (a: string | number, b: string | number) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  keyed.sort((a, b) => {
    if (a.value === null || b.value === null) return Number(a.value === null) - Number(b.value === null);
    return isDown ? less(b.value, a.value) : less(a.value, b.value);
  });
  return keyed.map((one) => one.run);
}
