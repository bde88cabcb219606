// A chart of values over time. Legend and values are drawn by the page, so that all labels are text.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { Text } from "./ui";

export interface Series {
  label: string;
  values: (number | null)[];
}

interface ChartProps {
  title: string;
  // Seconds since 1970, or steps if `isTime` is false.
  x: number[];
  series: Series[];
  format: (value: number) => string;
  top?: number;
  isTime?: boolean;
}

const HEIGHT = 150;

function colours(): { line: string[]; text: string; grid: string } {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string) => style.getPropertyValue(name).trim();
  return {
    line: [1, 2, 3, 4, 5, 6, 7, 8].map((index) => read(`--line-${index}`)),
    text: read("--muted"),
    grid: read("--border"),
  };
}

export function Chart({ title, x, series, format, top, isTime = true }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const shape = series.map((one) => one.label).join("\n");
  useEffect(() => {
    const place = box.current;
    if (!place) return;
    const draw = () => {
      plot.current?.destroy();
      plot.current = make(place, { x, series, format, top, isTime, title }, setAt);
    };
    draw();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: place.clientWidth, height: HEIGHT }));
    resized.observe(place);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      resized.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, isTime]);
  useEffect(() => {
    plot.current?.setData([x, ...series.map((one) => one.values)] as uPlot.AlignedData);
  }, [x, series]);
  const last = x.length - 1;
  return (
    <figure class="chart">
      <figcaption class={series.length > 2 ? "is-many" : ""}>
        <span>{title}</span>
        {series.map((one, index) => {
          const value = one.values[at ?? last];
          return (
            <span class="key">
              <i class={`line-${index + 1}`} />
              {series.length > 1 && <Text>{one.label}</Text>}
              <b class="num">{value == null ? "–" : format(value)}</b>
            </span>
          );
        })}
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={describe(title, series, format)} />
    </figure>
  );
}

function describe(title: string, series: Series[], format: (value: number) => string): string {
  const parts = series.map((one) => {
    const known = one.values.filter((value) => value !== null);
    if (!known.length) return `${one.label}: no values`;
    const latest = known[known.length - 1] as number;
    return `${one.label}: from ${format(Math.min(...known))} to ${format(Math.max(...known))}, at the end ${format(latest)}`;
  });
  return `${title}. ${parts.join("; ")}`;
}

function make(place: HTMLElement, props: ChartProps, onMove: (at: number | null) => void): uPlot {
  const paint = colours();
  const axis = { stroke: paint.text, font: "11px system-ui", grid: { stroke: paint.grid, width: 1 }, ticks: { show: false } };
  return new uPlot(
    {
      width: place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false } },
      scales: {
        x: { time: props.isTime ?? true },
        y: { range: (_plot, low, high) => range(low, high, props.top) },
      },
      series: [
        {},
        ...props.series.map((one, index) => ({
          label: one.label,
          stroke: paint.line[index % paint.line.length] ?? paint.text,
          width: 1.5,
          spanGaps: false,
          points: { show: one.values.length < 3 },
        })),
      ],
      axes: [
        { ...axis, size: 22, space: 72, values: (_plot, values) => xLabels(values, props.isTime ?? true) },
        { ...axis, size: 58, values: (_plot, values) => values.map((value) => (value === null ? "" : props.format(value))) },
      ],
      hooks: { setCursor: [(one) => onMove(one.cursor.idx ?? null)] },
    },
    [props.x, ...props.series.map((one) => one.values)] as uPlot.AlignedData,
    place,
  );
}

/** Times of day, with the day where it changes; or steps. */
function xLabels(values: number[], isTime: boolean): string[] {
  if (!isTime) return values.map(String);
  const span = (values[values.length - 1] ?? 0) - (values[0] ?? 0);
  const exact = span < 600 ? ({ second: "2-digit" } as const) : {};
  return values.map((value) => {
    const date = new Date(value * 1000);
    if (span > 2 * 86_400) return date.toLocaleDateString([], { day: "numeric", month: "short" });
    return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...exact });
  });
}

function range(low: number | null, high: number | null, top?: number): [number, number] {
  if (top !== undefined) return [0, top];
  if (low === null || high === null) return [0, 1];
  if (high === 0 && low === 0) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 && low < (high - low) * 0.6 ? 0 : low - room, high + room];
}
