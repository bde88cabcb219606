// A parallel plot: a line through the values of each run, with the best one marked.

import { useMemo } from "preact/hooks";
import { significant } from "../format";
import type { Result } from "../job_types";
import type { JobId } from "../types";

const WIDTH = 720;
const HEIGHT = 240;
const EDGE = 40;
const TOP = 34;
// Values that an axis of few words or numbers names.
const FEW = 6;

type Value = string | number;

interface Axis {
  name: string;
  x: number;
  place: (value: Value) => number;
  marks: { text: string; at: number }[];
}

interface ParallelProps {
  results: Result[];
  parameters: string[];
  metric: string;
  isHighBest: boolean;
  best: JobId | null;
  hot: JobId | null;
}

// From this many runs on, the best tenth has a colour: single lines can no longer be told apart.
const MANY = 30;

export function Parallel({ results, parameters, metric, isHighBest, best, hot }: ParallelProps) {
  const plot = useMemo(() => {
    const runs = results.filter((run) => run.metrics[metric] !== undefined);
    const axes = [...parameters, metric].map((name, index, all): Axis => {
      const values = runs.map((run) => (index < parameters.length ? (run.parameters[name] ?? "") : (run.metrics[metric] as number)));
      const place = scale(values);
      return { name, place, marks: marksOf(values, place), x: EDGE + (index * (WIDTH - 2 * EDGE)) / (all.length - 1) };
    });
    const lines = new Map<JobId, string>();
    for (const run of runs) {
      const points = axes.map((axis, index) => {
        const value = index < parameters.length ? (run.parameters[axis.name] ?? "") : (run.metrics[metric] as number);
        return `${axis.x},${(TOP + axis.place(value) * (HEIGHT - TOP - 14)).toFixed(1)}`;
      });
      lines.set(run.id, `M${points.join("L")}`);
    }
    const sign = isHighBest ? -1 : 1;
    const ranked = [...runs].sort((a, b) => sign * ((a.metrics[metric] as number) - (b.metrics[metric] as number)));
    const top = runs.length < MANY ? 0 : Math.ceil(runs.length / 10);
    // One path for many runs: thousands of elements would be slow.
    const path = (some: Result[]) => some.map((run) => lines.get(run.id)).join("");
    return { axes, lines, others: path(ranked.slice(top)), top: path(ranked.slice(0, top)) };
  }, [results, parameters.join("\n"), metric, isHighBest]);
  if (plot.lines.size < 2) return <p class="empty">Fewer than two runs have reported {metric} yet.</p>;
  const density = Math.max(0.12, Math.min(0.4, 30 / plot.lines.size));
  return (
    <div class="scroll">
      <svg class="parallel" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${metric} by ${parameters.join(", ")}; the table below has the values`}>
        <path d={plot.others} class="runs" style={`--density: ${density.toFixed(2)}`} />
        <path d={plot.top} class="top" />
        {best !== null && plot.lines.has(best) && <path d={plot.lines.get(best)} class="is-best" />}
        {hot !== null && hot !== best && plot.lines.has(hot) && <path d={plot.lines.get(hot)} class="is-hot" />}
        {plot.axes.map((axis, index) => (
          <g>
            <line x1={axis.x} x2={axis.x} y1={TOP} y2={HEIGHT - 14} class="axis" />
            <text x={axis.x} y={14} class="axis-name">
              {axis.name}
            </text>
            {axis.marks.map((mark) => (
              <text x={axis.x + (index === plot.axes.length - 1 ? 6 : -6)} y={TOP + mark.at * (HEIGHT - TOP - 14) + 4} class={index === plot.axes.length - 1 ? "at-start" : "at-end"}>
                {mark.text}
              </text>
            ))}
          </g>
        ))}
      </svg>
      {plot.top && <p class="muted">The best tenth of the runs is blue.</p>}
    </div>
  );
}

/** Places of values on an axis, from 0 (top) to 1: numbers by size, words in order. */
function scale(values: Value[]): (value: Value) => number {
  const numbers = values.map(Number);
  if (values.every((value, index) => value !== "" && Number.isFinite(numbers[index]))) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of numbers) [low, high] = [Math.min(low, value), Math.max(high, value)];
    const isLog = low > 0 && high / low > 50;
    const size = (value: number) => (isLog ? Math.log(value) : value);
    const [from, to] = [size(low), size(high)];
    return (value) => (to === from ? 0.5 : 1 - (size(Number(value)) - from) / (to - from));
  }
  const words = [...new Set(values.map(String))].sort();
  const places = new Map(words.map((word, index) => [word, words.length < 2 ? 0.5 : index / (words.length - 1)]));
  return (value) => places.get(String(value)) ?? 0.5;
}

/** The values that an axis names: all if they are few and apart, else the ends. */
function marksOf(values: Value[], place: (value: Value) => number): { text: string; at: number }[] {
  const different = new Map<string, number>();
  for (const value of values) different.set(typeof value === "number" ? significant(value) : short(value), place(value));
  const marks = [...different].map(([text, at]) => ({ text, at })).sort((a, b) => a.at - b.at);
  const ends = [marks[0], marks[marks.length - 1]].filter((mark) => mark !== undefined);
  const isApart = marks.every((mark, index) => index === 0 || mark.at - (marks[index - 1]?.at ?? 0) > 0.07);
  return marks.length <= FEW && isApart ? marks : ends;
}

const short = (text: string) => (text.length > 9 ? `${text.slice(0, 8)}…` : text);
