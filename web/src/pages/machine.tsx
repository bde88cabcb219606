// The machine: each GPU in full, reservations, and what operators may change.

import { useEffect, useMemo, useState } from "preact/hooks";
import { post } from "../api";
import { clock, full, gib, memory, roughly, seconds } from "../format";
import { useNow, useReadings, useResource } from "../hooks";
import "../machine.css";
import { Chart, type Series } from "../parts/chart";
import { Confirmation } from "../parts/actions";
import { Failure, JobLink, Loading, Section, tell, Text } from "../parts/ui";
import type { Gpu, GpuHistory, Happening, Info, Me, Status } from "../types";
import { type GpuEvents, GpuEventsSection } from "./gpu_events";
import { aboutGpus, aboutJobs, gpuState, Meter, reservationOf } from "./overview";
import { ReservationsSection } from "./reservations";

const aboutMachine = (event: Happening) => /^(gpu|drain|manual)_/.test(event.event) && !event.job_id;

export function MachinePage({ me }: { me: Me | null }) {
  const info = useResource<Info>("/info?long=1", aboutGpus);
  const status = useResource<Status>("/status", aboutJobs);
  const [hours, setHours] = useState("24");
  const events = useResource<GpuEvents>(`/gpus/events?hours=${hours}`, aboutMachine);
  const now = useReadings();
  const isLoaded = info.data !== null;
  useEffect(() => document.getElementById(location.hash.slice(1))?.scrollIntoView({ block: "center" }), [isLoaded]);
  if (info.error) return <Failure error={info.error} />;
  if (!info.data) return <Loading />;
  const machine = { ...info.data, gpus: info.data.gpus.map((gpu) => ({ ...gpu, ...now.gpus.get(gpu.index) })) };
  const indices = machine.gpus.map((gpu) => gpu.index);
  return (
    <>
      <div class="page-head">
        <h1>Machine</h1>
        {machine.driver && <span class="muted">driver {machine.driver}</span>}
        {me?.operator && <Drain info={machine} />}
      </div>
      {machine.drained && (
        <div class="notice">
          Drained: <Text>{machine.reason || "no new jobs start"}</Text>
        </div>
      )}
      <GpuHistorySection hours={hours} setHours={setHours} gpus={machine.gpus} />
      {events.data && <GpuEventsSection found={events.data} gpus={indices} period={PERIODS[hours] ?? ""} />}
      <ReservationsSection gpus={indices} isOperator={me?.operator ?? false} />
      <div class="columns gpu-panels">
        {machine.gpus.map((gpu) => (
          <GpuPanel gpu={gpu} me={me} isDrained={machine.drained_gpus[String(gpu.index)] !== undefined || isUnhealthy(gpu)} />
        ))}
      </div>
      {status.data && <Host status={status.data} />}
    </>
  );
}

function Host({ status }: { status: Status }) {
  const cpus = status.cpu_total - status.cpu_available;
  const used = status.memory_total_mib - status.memory_available_mib;
  return (
    <Section title="Host">
      <Meter name="CPU slots" value={cpus / status.cpu_total} text={`${cpus} of ${status.cpu_total} taken`} label="CPU slots taken" />
      <Meter
        name="memory"
        value={used / status.memory_total_mib}
        text={`${memory(used)} of ${memory(status.memory_total_mib)} booked`}
        label="host memory booked"
      />
      <p class="muted">The daemon has run for {roughly(status.uptime_secs)}.</p>
    </Section>
  );
}

const PERIODS: Record<string, string> = { "1": "hour", "24": "day", "168": "week" };

/** The GPUs over time, one line for each, or one of them. */
function GpuHistorySection({ hours, setHours, gpus }: { hours: string; setHours: (hours: string) => void; gpus: Gpu[] }) {
  const [gpu, setGpu] = useState("");
  const found = useResource<GpuHistory>(`/gpus/history?hours=${hours}${gpu && `&gpu=${gpu}`}`);
  const minute = Math.floor(useNow(60_000) / 60_000);
  useEffect(found.reload, [minute]);
  const points = found.data?.points ?? [];
  const busy = useMemo(() => lines(points, (point) => point.busy), [points]);
  const used = useMemo(() => lines(points, (point) => (point.memory_mib === null ? null : point.memory_mib / 1024)), [points]);
  const heat = useMemo(() => lines(points, (point) => point.temperature), [points]);
  const power = useMemo(() => lines(points, (point) => point.power_w), [points]);
  const choice = (
    <span class="tabs" role="group" aria-label="period">
      {gpus.length > 1 && (
        <select aria-label="GPU" value={gpu} onChange={(event) => setGpu(event.currentTarget.value)}>
          <option value="">all GPUs</option>
          {gpus.map((one) => (
            <option value={String(one.index)}>GPU {one.index}</option>
          ))}
        </select>
      )}
      {Object.entries(PERIODS).map(([key, name]) => (
        <button type="button" aria-pressed={key === hours} onClick={() => setHours(key)}>
          {name}
        </button>
      ))}
    </span>
  );
  return (
    <Section title="GPUs over time" more={choice}>
      {busy.x.length < 3 ? (
        <p class="empty">
          {gpus.every((one) => one.simulated) ? "Simulated GPUs have no readings." : "There are no readings of this period yet."}
        </p>
      ) : (
        <div class="chart-grid is-wide">
          <Chart title="Utilisation" {...busy} top={100} format={(value) => `${Math.round(value)} %`} />
          <Chart title="Memory" {...used} top={Math.max(...gpus.map((one) => one.memory_mib)) / 1024} format={gib} />
          <Chart title="Temperature" {...heat} format={(value) => `${Math.round(value)} °C`} />
          <Chart title="Power" {...power} format={(value) => `${Math.round(value)} W`} />
        </div>
      )}
    </Section>
  );
}

type GpuPoint = GpuHistory["points"][0];

function lines(points: GpuPoint[], value: (point: GpuPoint) => number | null): { x: number[]; series: Series[] } {
  const x = [...new Set(points.map((point) => seconds(point.at)))].sort((a, b) => a - b);
  const place = new Map(x.map((at, index) => [at, index]));
  const byGpu = new Map<number, (number | null)[]>();
  for (const point of points) {
    const values = byGpu.get(point.gpu) ?? Array<number | null>(x.length).fill(null);
    values[place.get(seconds(point.at)) as number] = value(point);
    byGpu.set(point.gpu, values);
  }
  const sorted = [...byGpu].sort(([a], [b]) => a - b);
  return { x, series: sorted.map(([gpu, values]) => ({ label: `GPU ${gpu}`, values })) };
}

/** Resuming also ends the drain that follows a fault. */
const isUnhealthy = (gpu: Gpu) => gpu.reason?.startsWith("Unhealthy") ?? false;

function GpuPanel({ gpu, me, isDrained }: { gpu: Gpu; me: Me | null; isDrained: boolean }) {
  const state = gpuState(gpu);
  const now = useNow(10_000);
  const reserved = reservationOf(gpu);
  return (
    <Section
      title={`GPU ${gpu.index}`}
      more={
        <>
          <span class={`pill is-${state.kind}`}>{state.word}</span>
          {me?.operator && <Drain gpu={gpu.index} isDrained={isDrained} />}
        </>
      }
    >
      <div id={`gpu-${gpu.index}`}>
        <dl class="facts">
          <div>
            <dt>Model</dt>
            <dd>
              <Text>{gpu.model}</Text>
              {gpu.simulated && " (simulated)"}
            </dd>
          </div>
          <div>
            <dt>UUID</dt>
            <dd class="one-line" title={gpu.uuid}>
              <code>{gpu.uuid}</code>
            </dd>
          </div>
          <div>
            <dt>Memory</dt>
            <dd>
              {gpu.used_mib === null ? "" : `${memory(gpu.used_mib)} used of `}
              {memory(gpu.memory_mib)}
            </dd>
          </div>
          {gpu.temperature != null && (
            <div>
              <dt>Readings</dt>
              <dd>
                {gpu.utilisation != null && `${gpu.utilisation} % busy, `}
                {gpu.temperature} °C{gpu.power_w != null && `, ${Math.round(gpu.power_w)} W`}
              </dd>
            </div>
          )}
          {reserved && (
            <div>
              <dt>Reserved</dt>
              <dd>
                for <Text>{reserved.user}</Text> until {clock(reserved.end, now)}
              </dd>
            </div>
          )}
          {gpu.reason && (
            <div>
              <dt>Blocked</dt>
              <dd>
                <Text>{gpu.reason}</Text>
              </dd>
            </div>
          )}
        </dl>
        <ul class="list">
          {gpu.holders.map((holder) => (
            <li>
              {holder.id === null ? <span>{holder.name}</span> : <JobLink id={holder.id} name={holder.name} />}
              <span class="end muted">
                <Text>{holder.user}</Text>
                {holder.limit_mib !== null && <span>{memory(holder.limit_mib)}</span>}
                {holder.started_at && <span title={full(holder.started_at)}>since {clock(holder.started_at, now)}</span>}
              </span>
            </li>
          ))}
          {gpu.processes.map((one) => (
            <li>
              <span>
                Process {one.pid} <Text class="muted">{one.command}</Text>
              </span>
              <span class="end muted">
                <Text>{one.user}</Text>
                {one.memory_mib !== null && <span>{memory(one.memory_mib)}</span>}
                {one.tolerated ? <Text>{one.tolerated}</Text> : <span class="warn">not a job: the GPU is blocked</span>}
              </span>
            </li>
          ))}
        </ul>
      </div>
    </Section>
  );
}

function Drain({ info, gpu, isDrained }: { info?: Info; gpu?: number; isDrained?: boolean }) {
  const [isAsking, setAsking] = useState(false);
  const is = info ? info.drained : isDrained;
  const what = gpu === undefined ? "the machine" : `GPU ${gpu}`;
  const option = gpu === undefined ? "" : ` --gpu ${gpu}`;
  const action = {
    name: is ? "Resume" : "Drain",
    title: is ? `Resume ${what}` : `Drain ${what}?`,
    about: is ? "New jobs start again." : "Running jobs go on. No new job starts there until it is resumed.",
    command: `gctl ${is ? "resume" : "drain"}${option}`,
    isDestructive: !is,
    run: async () => {
      await post("/drain", { on: !is, gpus: gpu === undefined ? null : [gpu] });
      tell(is ? `${what} takes jobs again` : `${what} is drained`);
    },
  };
  return (
    <>
      <button type="button" aria-label={`${action.name} ${what}`} onClick={() => setAsking(true)}>
        {gpu === undefined ? `${action.name} the machine` : action.name}
      </button>
      {isAsking && <Confirmation action={action} onClose={() => setAsking(false)} />}
    </>
  );
}
