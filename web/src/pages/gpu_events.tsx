// What happened to the GPUs: marks over time, one line for each GPU, and the list.

import { useState } from "preact/hooks";
import { clock, full, roughly, seconds } from "../format";
import { Section, Text } from "../parts/ui";

export interface GpuEvent {
  at: string;
  until: string | null;
  kind: "blocked" | "available" | "error" | "drained" | "resumed" | "slowed" | "restricted" | "spot";
  gpus: number[];
  text: string;
  by: string | null;
}

export interface GpuEvents {
  since: string;
  events: GpuEvent[];
}

// Rows of the list before the button for more.
const ROWS = 8;
const KINDS: Record<GpuEvent["kind"], string> = {
  blocked: "Blocked",
  available: "Available",
  error: "Error",
  drained: "Drained",
  resumed: "Resumed",
  slowed: "Slowed",
  restricted: "Restricted",
  spot: "Spot notice",
};

export function GpuEventsSection({ found, gpus, period }: { found: GpuEvents; gpus: number[]; period: string }) {
  const [isAll, setAll] = useState(false);
  const { events } = found;
  const shown = isAll ? events : events.slice(0, ROWS);
  return (
    <Section title={`Events of the last ${period}`}>
      {!events.length && <p class="empty">No fault, drain or slow clock.</p>}
      {events.length > 0 && <Lanes found={found} gpus={gpus} />}
      <ul class="list events">
        {shown.map((event) => (
          <li>
            <span>
              <span class={`pill is-${event.kind}`}>{KINDS[event.kind]}</span> {where(event)}
              {detail(event) && ": "}
              <Text>{detail(event)}</Text>
            </span>
            <span class="end muted">
              {event.by && <Text>{`by ${event.by}`}</Text>}
              <span class="num" title={full(event.at)}>
                {clock(event.at)}
                {event.until && `, for ${roughly(seconds(event.until) - seconds(event.at))}`}
              </span>
            </span>
          </li>
        ))}
      </ul>
      {events.length > shown.length && (
        <button type="button" onClick={() => setAll(true)}>
          Show all {events.length}
        </button>
      )}
    </Section>
  );
}

const where = (event: GpuEvent) => (event.gpus.length ? `GPU ${event.gpus.join(", ")}` : "Machine");

/** The text without the word that the mark says already. */
function detail(event: GpuEvent): string {
  const text = event.text.replace(/^(the machine is )?(drained|resumed|available|spot notice|slowed)(: | )?/, "");
  return text.replace(/^Unmanaged: /, "used outside gflow: ").replace(/^Unhealthy: /, "").replace(/^CannotTell: /, "");
}

function Lanes({ found, gpus }: { found: GpuEvents; gpus: number[] }) {
  const start = seconds(found.since);
  const span = Date.now() / 1000 - start;
  const ofMachine = found.events.filter((event) => !event.gpus.length);
  const lanes = gpus.map((gpu) => ({ name: `GPU ${gpu}`, events: found.events.filter((event) => event.gpus.includes(gpu)) }));
  if (ofMachine.length) lanes.push({ name: "Machine", events: ofMachine });
  return (
    <div class="timeline" aria-hidden="true">
      {lanes
        .filter((lane) => lane.events.length)
        .map((lane) => (
          <div class="lane">
            <span class="muted">{lane.name}</span>
            <div>
              {lane.events.map((event) => {
                const at = Math.max(0, seconds(event.at) - start) / span;
                const until = event.until ? (seconds(event.until) - start) / span : at;
                return (
                  <b
                    class={`is-${event.kind}`}
                    style={{ left: `${at * 100}%`, width: `${Math.max(0, until - at) * 100}%` }}
                    title={`${clock(event.at)} ${event.text}`}
                  />
                );
              })}
            </div>
          </div>
        ))}
      <Axis start={start} end={start + span} />
    </div>
  );
}

/** Times below a line of time: hours of a day, or days. */
export function Axis({ start, end }: { start: number; end: number }) {
  const step = end - start > 3 * 86_400 ? 86_400 : end - start > 7200 ? 4 * 3600 : 900;
  const zone = new Date(start * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((start - zone) / step) * step + zone;
  const ticks = [];
  // A label near the end would be cut.
  for (let at = first; at < end - (end - start) / 25; at += step) ticks.push(at);
  const isDays = step === 86_400;
  return (
    <div class="axis muted" aria-hidden="true">
      {ticks.map((at) => {
        const date = new Date(at * 1000);
        const text = isDays
          ? date.toLocaleDateString([], { weekday: "short", day: "numeric" })
          : date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
        return <span style={{ left: `${((at - start) / (end - start)) * 100}%` }}>{text}</span>;
      })}
    </div>
  );
}
