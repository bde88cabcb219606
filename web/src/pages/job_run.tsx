// How a job runs: progress, what it reported over time, and what it did with its GPUs.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { gib, number, roughly, seconds, significant } from "../format";
import { useResource } from "../hooks";
import { Chart, type Series } from "../parts/chart";
import { Bar, Fact, Section } from "../parts/ui";
import type { Job, ProgressPoints, Usage, Used } from "../types";
import { isFinal } from "../types";
import { concerns } from "./reasons";

export function RunSection({ job, path, isMine }: { job: Job; path: string; isMine: boolean }) {
  const usage = useResource<Usage>(job.attempt > 0 && job.gpus > 0 && job.target === "local" ? `${path}/usage` : null, concerns(String(job.id)));
  const samples = usage.data?.samples ?? [];
  const progress = job.progress;
  const isLong = new Set(samples.map((one) => one.at)).size > 2;
  if (!progress && !isLong) return null;
  return (
    <Section title={progress ? "Progress" : "GPUs"}>
      {progress && <ProgressFacts job={job} />}
      <div class="chart-grid">
        {progress && isMine && <MetricCharts job={job} path={path} />}
        {isLong && <GpuCharts samples={samples} />}
      </div>
    </Section>
  );
}

// Milliseconds between two readings of the values so far, while the job runs and reports.
const REREAD = 10_000;

/** The loss and the metrics that the job reported, by step. */
function MetricCharts({ job, path }: { job: Job; path: string }) {
  const found = useResource<ProgressPoints>(`${path}/progress`, concerns(String(job.id)));
  const read = useRef(0);
  useEffect(() => {
    // New values arrive with the readings; now and then the stored ones are read again.
    if (job.state !== "Running" || Date.now() - read.current < REREAD) return;
    read.current = Date.now();
    found.reload();
  }, [job.progress]);
  const points = useMemo(() => withLatest(found.data?.points ?? [], job), [found.data, job.progress]);
  const names = useMemo(() => [...new Set(points.flatMap((point) => Object.keys(point.metrics)))].slice(0, 6), [points]);
  const x = useMemo(() => points.map((point) => point.step), [points]);
  if (points.length < 3) return null;
  return (
    <>
      {points.some((point) => point.loss !== null) && (
        <Chart title="Loss by step" x={x} series={[{ label: "loss", values: points.map((point) => point.loss) }]} format={significant} isTime={false} />
      )}
      {names.map((name) => (
        <Chart
          title={name}
          x={x}
          series={[{ label: name, values: points.map((point) => point.metrics[name] ?? null) }]}
          format={significant}
          isTime={false}
        />
      ))}
    </>
  );
}

type PointList = ProgressPoints["points"];

/** Points with rising steps, as a chart needs them: of attempts that repeat steps the later one counts. */
function withLatest(points: PointList, job: Job): PointList {
  const latest = job.progress && {
    at: job.progress.at, attempt: job.attempt, step: job.progress.step, loss: job.progress.loss, metrics: job.progress.metrics,
  };
  const rising: PointList = [];
  for (const point of latest ? [...points, latest] : points) {
    while (rising.length && (rising[rising.length - 1] as PointList[0]).step >= point.step) rising.pop();
    rising.push(point);
  }
  return rising;
}

function ProgressFacts({ job }: { job: Job }) {
  const found = job.progress!;
  const left = found.left_s !== null && !isFinal(job.state) ? `about ${roughly(found.left_s)} left` : "";
  return (
    <div class="run-progress">
      {found.percent !== null && (
        <div class="meter">
          <span class="num">{found.percent} %</span>
          <Bar value={found.percent / 100} label="progress of the job" kind="accent" />
          <span class="muted">{left}</span>
        </div>
      )}
      <dl class="facts is-inline">
        <Fact name="Step" value={`${number(found.step)}${found.steps ? ` of ${number(found.steps)}` : ""}`} />
        <Fact name="Epoch" value={found.epoch === null ? null : `${found.epoch}${found.epochs ? ` of ${found.epochs}` : ""}`} />
        <Fact name="Loss" value={found.loss === null ? null : significant(found.loss)} />
        <Fact name="Samples/s" value={found.samples_per_s === null ? null : significant(found.samples_per_s)} />
        {Object.entries(found.metrics).map(([name, value]) => (
          <Fact name={name} value={significant(value)} />
        ))}
      </dl>
    </div>
  );
}

function aligned(samples: Used[], value: (one: Used) => number | null): { x: number[]; series: Series[] } {
  const x = [...new Set(samples.map((one) => seconds(one.at)))].sort((a, b) => a - b);
  const place = new Map(x.map((at, index) => [at, index]));
  const byGpu = new Map<string, (number | null)[]>();
  for (const one of samples) {
    const values = byGpu.get(String(one.gpu)) ?? Array<number | null>(x.length).fill(null);
    values[place.get(seconds(one.at)) as number] = value(one);
    byGpu.set(String(one.gpu), values);
  }
  return { x, series: [...byGpu].map(([gpu, values]) => ({ label: `GPU ${gpu}`, values })) };
}

function GpuCharts({ samples }: { samples: Used[] }) {
  const busy = useMemo(() => aligned(samples, (one) => one.busy), [samples]);
  const used = useMemo(() => aligned(samples, (one) => (one.memory_mib === null ? null : one.memory_mib / 1024)), [samples]);
  const power = useMemo(() => aligned(samples, (one) => one.power_w), [samples]);
  const heat = useMemo(() => aligned(samples, (one) => one.temperature), [samples]);
  const has = (found: { series: Series[] }) => found.series.some((one) => one.values.some((value) => value !== null));
  return (
    <>
      {has(busy) && <Chart title="GPU utilisation" {...busy} top={100} format={(value) => `${Math.round(value)} %`} />}
      {has(used) && <Chart title="GPU memory" {...used} format={gib} />}
      {has(power) && <Chart title="Power" {...power} format={(value) => `${Math.round(value)} W`} />}
      {has(heat) && <Chart title="Temperature" {...heat} format={(value) => `${Math.round(value)} °C`} />}
    </>
  );
}
