// Reservations as bars over time. Operators make them with a form, move them by drag or arrow keys, and cancel them.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, post, Problem } from "../api";
import { clock, quote } from "../format";
import { useNow, useResource } from "../hooks";
import { Confirmation } from "../parts/actions";
import { Failure, Section, tell, Text } from "../parts/ui";
import type { Happening, JobId, Reservation } from "../types";
import { Axis } from "./gpu_events";

const aboutReservations = (event: Happening) => event.event.startsWith("reservation_");
const HOUR = 3600;
// Seconds: the time that is shown, and the step of a drag or of an arrow key.
const SPAN = 7 * 86_400;
const STEP = HOUR / 4;

interface Draft {
  id: number;
  start: number;
}

export function ReservationsSection({ gpus, isOperator }: { gpus: number[]; isOperator: boolean }) {
  const found = useResource<{ reservations: Reservation[] }>("/reservations?active=1", aboutReservations);
  const [isNew, setNew] = useState(false);
  const [edited, setEdited] = useState<{ one: Reservation; start: number } | null>(null);
  const all = found.data?.reservations ?? [];
  const begin = isOperator && (
    <button type="button" onClick={() => setNew(true)}>
      Reserve
    </button>
  );
  return (
    <Section title="Reservations" more={begin}>
      {!all.length && <p class="empty">No GPU is reserved.{!isOperator && " Operators reserve GPUs for a user and a time."}</p>}
      {all.length > 0 && (
        <>
          <Bars all={all} gpus={gpus} onEdit={isOperator ? (one, start) => setEdited({ one, start }) : null} />
          {isOperator && (
            <p class="muted hint">
              Drag a bar to another time, or focus it and use the arrow keys and Enter. A click opens its form.
            </p>
          )}
          <List all={all} isOperator={isOperator} onEdit={(one) => setEdited({ one, start: one.start_time })} />
        </>
      )}
      {isNew && <Form onClose={() => setNew(false)} />}
      {edited && <Form one={edited.one} start={edited.start} onClose={() => setEdited(null)} />}
    </Section>
  );
}

function List({ all, isOperator, onEdit }: { all: Reservation[]; isOperator: boolean; onEdit: (one: Reservation) => void }) {
  return (
    <ul class="list stacked">
      {all.map((one) => (
        <li>
          <span>
            <Text>{one.user}</Text>{" "}
            <span class="muted">
              GPU {one.gpu_indices.join(", ")}, {clock(one.start_time)} to {clock(one.end_time)}
            </span>
          </span>
          <span class="end">
            {one.status === "active" && <span class="pill is-running">Now</span>}
            {isOperator && (
              <>
                <button type="button" aria-label={`Change reservation ${one.id}`} onClick={() => onEdit(one)}>
                  Change
                </button>
                <Unreserve one={one} />
              </>
            )}
          </span>
        </li>
      ))}
    </ul>
  );
}

type OnEdit = (one: Reservation, start: number) => void;

function Bars({ all, gpus, onEdit }: { all: Reservation[]; gpus: number[]; onEdit: OnEdit | null }) {
  const now = Math.floor(useNow(60_000) / 60_000) * 60;
  const [draft, setDraft] = useState<Draft | null>(null);
  const shown = all.filter((one) => one.end_time > now && one.start_time < now + SPAN);
  const booked = gpus.filter((gpu) => shown.some((one) => one.gpu_indices.includes(gpu)));
  return (
    <div class="timeline">
      {booked.map((gpu) => (
        <div class="lane">
          <span class="muted">GPU {gpu}</span>
          <div>
            {shown
              .filter((one) => one.gpu_indices.includes(gpu))
              .map((one) => (
                <Bar key={one.id} one={one} now={now} isFirst={one.gpu_indices[0] === gpu} draft={draft} setDraft={setDraft} onEdit={onEdit} />
              ))}
          </div>
        </div>
      ))}
      <Axis start={now} end={now + SPAN} />
    </div>
  );
}

interface BarProps {
  one: Reservation;
  now: number;
  // The bar of the first GPU takes the focus; those of its other GPUs move with it.
  isFirst: boolean;
  draft: Draft | null;
  setDraft: (draft: Draft | null) => void;
  onEdit: OnEdit | null;
}

function Bar({ one, now, isFirst, draft, setDraft, onEdit }: BarProps) {
  const drag = useRef<{ x: number; width: number } | null>(null);
  const start = draft?.id === one.id ? draft.start : one.start_time;
  const length = one.end_time - one.start_time;
  const from = Math.max(0, start - now) / SPAN;
  const to = Math.min(SPAN, start + length - now) / SPAN;
  const text = `${one.user}: ${clock(start)} to ${clock(start + length)}`;
  const place = { left: `${from * 100}%`, width: `${Math.max(0.004, to - from) * 100}%` };
  const moved = (by: number) => ({ id: one.id, start: Math.max(now, Math.round((one.start_time + by) / STEP) * STEP) });
  if (!onEdit)
    return (
      <span class="booked" style={place} title={text}>
        <Text>{one.user}</Text>
      </span>
    );
  const finish = (at: number) => {
    drag.current = null;
    setDraft(null);
    onEdit(one, at);
  };
  return (
    <button
      type="button"
      class={`booked ${draft?.id === one.id ? "is-moved" : ""}`}
      style={place}
      title={text}
      aria-label={`reservation ${one.id} of ${text}`}
      aria-hidden={!isFirst}
      tabIndex={isFirst ? 0 : -1}
      onPointerDown={(event) => {
        drag.current = { x: event.clientX, width: event.currentTarget.parentElement?.clientWidth ?? 1 };
        event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerMove={(event) => {
        const begun = drag.current;
        if (begun && Math.abs(event.clientX - begun.x) > 4) setDraft(moved(((event.clientX - begun.x) / begun.width) * SPAN));
      }}
      onPointerUp={() => finish(start)}
      onPointerCancel={() => {
        drag.current = null;
        setDraft(null);
      }}
      onKeyDown={(event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (by) setDraft(moved(start - one.start_time + by * (event.shiftKey ? 24 * HOUR : HOUR)));
        else if (event.key === "Enter" || event.key === " ") finish(start);
        else if (event.key === "Escape") setDraft(null);
        else return;
        event.preventDefault();
      }}
      onBlur={() => setDraft(null)}
    >
      <Text>{one.user}</Text>
    </button>
  );
}

function Unreserve({ one }: { one: Reservation }) {
  const [isAsking, setAsking] = useState(false);
  const action = {
    name: "Delete it",
    title: `Delete the reservation of ${one.user}?`,
    about: "The GPUs are free for the jobs of all users again.",
    command: `gctl reserve cancel ${one.id}`,
    isDestructive: true,
    run: async () => {
      await call("DELETE", `/reservations/${one.id}`);
      tell(`Reservation ${one.id} is deleted`);
    },
  };
  return (
    <>
      <button type="button" aria-label={`Delete reservation ${one.id}`} onClick={() => setAsking(true)}>
        Delete
      </button>
      {isAsking && <Confirmation action={action} onClose={() => setAsking(false)} />}
    </>
  );
}

interface Plan {
  stops: JobId[];
  gpu_indices: number[];
}

/** A form that makes a reservation, or changes `one`. It asks the daemon first which jobs would be stopped. */
function Form({ one, start = 0, onClose }: { one?: Reservation; start?: number; onClose: () => void }) {
  const [user, setUser] = useState("");
  const [count, setCount] = useState("1");
  const [which, setWhich] = useState(one ? one.gpu_indices.join(",") : "");
  const [from, setFrom] = useState(start ? localTime(start) : "");
  const [length, setLength] = useState(one ? String((one.end_time - one.start_time) / HOUR) : "8");
  const seconds = from ? new Date(from).getTime() / 1000 : 0;
  // The form has minutes: a start that was not changed keeps its seconds.
  const isSameStart = one !== undefined && from === localTime(one.start_time);
  const duration = Math.round(Number(length) * HOUR);
  const list = indices(which);
  const isReady = duration > 0 && (list.length > 0 || (!one && Number(count) > 0)) && (!!one || !!user.trim());
  const body = one
    ? { gpu_indices: list, duration_secs: duration, ...(isSameStart || !from ? {} : { start_time: seconds }) }
    : { user: user.trim(), duration_secs: duration, start_time: seconds, ...(list.length ? { gpu_indices: list } : { gpu_count: Number(count) }) };
  const send = (more: object) =>
    one ? call<Plan>("PATCH", `/reservations/${one.id}`, { ...body, ...more }) : post<Plan>("/reservations", { ...body, ...more });
  const { plan, error } = usePlan(isReady ? JSON.stringify(body) : "", () => send({ dry_run: true }));
  const stops = plan?.stops.length ?? 0;
  const verb = one ? "Change" : "Reserve";
  const words = [
    `gctl reserve ${one ? `update ${one.id}` : `create --user ${quote(user.trim() || "USER")}`}`,
    ...(list.length ? [`--gpu-spec ${list.join(",")}`] : [`--gpus ${count || 1}`]),
    ...(from && !isSameStart ? [`--start ${from}`] : []),
    `--duration ${spell(duration)}`,
  ];
  const action = {
    name: stops ? `${verb} and stop ${stops} job${stops > 1 ? "s" : ""}` : verb,
    title: one ? `Change the reservation of ${one.user}` : "Reserve GPUs",
    about: "Only jobs of this user get the GPUs in that time.",
    command: words.join(" "),
    isDestructive: stops > 0,
    run: async () => {
      await send({});
      tell(one ? `Reservation ${one.id} is changed` : `GPUs are reserved for ${user.trim()}`);
    },
  };
  const field = (label: string, value: string, set: (text: string) => void, type = "text", hint = "") => (
    <label class="field">
      <span>{label}</span>
      <input type={type} value={value} placeholder={hint} onInput={(event) => set(event.currentTarget.value)} />
    </label>
  );
  return (
    <Confirmation action={action} onClose={onClose} isReady={isReady && plan !== null}>
      <div class="fields">
        {!one && field("User", user, setUser)}
        {!one && field("Number of GPUs", count, setCount, "number")}
        {field(one ? "GPUs" : "Or these GPUs", which, setWhich, "text", "0,2-3")}
        {field(one ? "From" : "From (empty: now)", from, setFrom, "datetime-local")}
        {field("Hours", length, setLength, "number")}
      </div>
      {plan && stops > 0 && (
        <p class="notice" role="status">
          Stops when it begins: job {plan.stops.join(", ")}. Work since the last checkpoint is lost.
        </p>
      )}
      {plan && !stops && <p class="muted">No running job is stopped.</p>}
      {error && <Failure error={error} />}
    </Confirmation>
  );
}

/** The plan of what the form has now; null while it is not known or refused. */
function usePlan(body: string, ask: () => Promise<Plan>): { plan: Plan | null; error: Problem | null } {
  const [state, setState] = useState<{ body: string; plan: Plan | null; error: Problem | null }>({ body: "", plan: null, error: null });
  useEffect(() => {
    if (!body) return;
    let isCurrent = true;
    const timer = setTimeout(() => {
      ask().then(
        (plan) => isCurrent && setState({ body, plan, error: null }),
        (error) => isCurrent && setState({ body, plan: null, error: error instanceof Problem ? error : null }),
      );
    }, 250);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [body]);
  return state.body === body && body ? state : { plan: null, error: null };
}

/** The numbers of a list such as 0,2-3; none if it is not one. */
function indices(text: string): number[] {
  const found = new Set<number>();
  for (const part of text.split(",").filter((one) => one.trim())) {
    const match = /^\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*$/.exec(part);
    if (!match) return [];
    for (let at = Number(match[1]); at <= Number(match[2] ?? match[1]); at++) found.add(at);
  }
  return [...found].sort((a, b) => a - b);
}

function spell(seconds: number): string {
  const minutes = Math.round(seconds / 60);
  return `${minutes >= 60 ? `${Math.floor(minutes / 60)}h` : ""}${minutes % 60 ? `${minutes % 60}m` : ""}` || "0m";
}

/** A time as an input of type datetime-local has it. */
function localTime(at: number): string {
  const date = new Date(at * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
