// A bar for each day, with a part for each user.

import { useEffect, useRef, useState } from "preact/hooks";
import { trim } from "../format";
import { Text } from "../parts/ui";
import type { UsageDays } from "./people";

// Users with a colour of their own; the others are one part. Longer periods have a bar for each week.
const USERS = 7;
const OTHERS = "others";
const LEAST = 0.05;
const MOST_DAYS = 62;
const HEIGHT = 190;
const LEFT = 44;
const BOTTOM = 20;

interface Column {
  day: string;
  total: number;
  busy: number;
  measured: number;
  hours: Map<string, number>;
}

export function DaysChart({ days }: { days: UsageDays }) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(800);
  const [at, setAt] = useState<number | null>(null);
  useEffect(() => {
    const place = box.current;
    if (!place) return;
    const resized = new ResizeObserver(() => setWidth(Math.max(260, place.clientWidth)));
    resized.observe(place);
    return () => resized.disconnect();
  }, []);
  const users = days.by_user.filter((one) => one.gpu_hours >= LEAST).map((one) => one.name ?? "");
  const named = users.slice(0, USERS);
  const names = users.length > USERS ? [...named, OTHERS] : named;
  const columns = columnsOf(days, named);
  const isWeekly = days.days.length > MOST_DAYS;
  const most = roundUp(Math.max(...columns.map((one) => one.total), 0.01));
  const slot = (width - LEFT) / columns.length;
  const chosen = at === null ? null : columns[at];
  const y = (hours: number) => HEIGHT - BOTTOM - (hours / most) * (HEIGHT - BOTTOM - 8);
  const text = `GPU-hours by ${isWeekly ? "week" : "day"}. ${columns.map((one) => `${one.day}: ${trim(one.total)}`).join("; ")}`;
  return (
    <figure class="chart">
      <figcaption>
        <span class="num">{chosen ? label(chosen.day, isWeekly) : isWeekly ? "by week" : ""}</span>
        {names.map((name, index) => (
          <span class="key">
            <i class={`line-${index + 1}`} />
            <Text>{name}</Text>
            <b class="num">{trim(chosen ? (chosen.hours.get(name) ?? 0) : sum(columns, name))}</b>
          </span>
        ))}
        {chosen && chosen.measured > 0 && <span class="key">busy {Math.round((chosen.busy / chosen.measured) * 100)} %</span>}
      </figcaption>
      <div ref={box}>
        <svg class="days" viewBox={`0 0 ${width} ${HEIGHT}`} role="img" aria-label={text} onMouseLeave={() => setAt(null)}>
          {[0, 0.5, 1].map((part) => (
            <>
              <line x1={LEFT} x2={width} y1={y(part * most)} y2={y(part * most)} />
              <text x={LEFT - 6} y={y(part * most) + 4} text-anchor="end">
                {trim(part * most)}
              </text>
            </>
          ))}
          {columns.map((one, index) => {
            let below = 0;
            const x = LEFT + index * slot;
            const every = Math.ceil(46 / slot);
            return (
              <g onMouseEnter={() => setAt(index)}>
                <rect x={x} y={0} width={slot} height={HEIGHT} fill="transparent" />
                {names.map((name, place) => {
                  const hours = one.hours.get(name) ?? 0;
                  below += hours;
                  if (!hours) return null;
                  const tall = Math.max(0.5, y(below - hours) - y(below));
                  const gap = Math.min(6, slot * 0.2);
                  return <rect class={`bar-${place + 1}`} x={x + gap / 2} y={y(below)} width={Math.max(1, Math.min(60, slot - gap))} height={tall} />;
                })}
                {index % every === 0 && (
                  <text x={x + Math.min(slot, 60) / 2} y={HEIGHT - 5} text-anchor="middle">
                    {label(one.day, false)}
                  </text>
                )}
              </g>
            );
          })}
        </svg>
      </div>
    </figure>
  );
}

const sum = (columns: Column[], name: string) => columns.reduce((all, one) => all + (one.hours.get(name) ?? 0), 0);

function columnsOf(days: UsageDays, named: string[]): Column[] {
  const found = new Map<string, Column>();
  const first = Math.max(0, days.days.findIndex((day) => day.gpu_hours > 0));
  // From the first day with jobs on, but some days at least, so that bars keep their width.
  const shown = days.days.slice(Math.min(first, Math.max(0, days.days.length - 7)));
  for (const day of shown) {
    const key = days.days.length > MOST_DAYS ? monday(day.day) : day.day;
    const column = found.get(key) ?? { day: key, total: 0, busy: 0, measured: 0, hours: new Map() };
    found.set(key, column);
    column.total += day.gpu_hours;
    column.busy += day.busy_gpu_hours;
    column.measured += day.measured_gpu_hours;
    for (const group of day.groups) {
      const name = named.includes(group.user) ? group.user : OTHERS;
      column.hours.set(name, (column.hours.get(name) ?? 0) + group.gpu_hours);
    }
  }
  return [...found.values()];
}

function monday(day: string): string {
  const date = new Date(`${day}T00:00:00Z`);
  date.setUTCDate(date.getUTCDate() - ((date.getUTCDay() + 6) % 7));
  return date.toISOString().slice(0, 10);
}

function label(day: string, isWeek: boolean): string {
  const text = new Date(`${day}T00:00:00`).toLocaleDateString([], { day: "numeric", month: "short" });
  return isWeek ? `week of ${text}` : text;
}

/** The next round number. */
function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((one) => one * power >= value) ?? 10) * power;
}
