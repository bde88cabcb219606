// What a job waits for, and what waits for it: a small graph.

import { useResource, navigate, BASE } from "../hooks";
import type { Dependencies as Found, RelatedJob } from "../job_types";
import { Section, WORDS } from "../parts/ui";
import { plain } from "../format";
import type { Job } from "../types";
import { aboutJobs } from "./overview";

// Jobs on each side of the graph; sizes in its units.
const MOST = 8;
const BOX = { width: 132, height: 34, gap: 10 };
const BETWEEN = 32;

export function Dependencies({ job, path }: { job: Job; path: string }) {
  const found = useResource<Found>(`${path}/dependencies`, aboutJobs);
  const data = found.data;
  if (!data || (!data.parents_total && !data.children_total)) return null;
  const rows = Math.max(1, Math.min(MOST, data.parents.length), Math.min(MOST, data.children.length));
  const left = data.parents_total ? BOX.width + BETWEEN : 0;
  const width = left + BOX.width + (data.children_total ? BOX.width + BETWEEN : 0);
  const height = rows * (BOX.height + BOX.gap) + 22;
  const middle = height / 2 + 6;
  return (
    <Section title="Dependencies">
      <svg class="graph" width={width + 4} height={height} viewBox={`-2 0 ${width + 4} ${height}`} role="group" aria-label="dependencies of the job">
        {data.parents_total > 0 && <text x={0} y={10}>waits for{more(data.parents_total)}</text>}
        {data.children_total > 0 && (
          <text x={width} y={10} class="at-end">
            waits for it{more(data.children_total)}
          </text>
        )}
        {data.parents.slice(0, MOST).map((one, index, all) => (
          <Related one={one} x={0} y={placeOf(index, all.length, middle)} to={[left, middle]} />
        ))}
        {data.children.slice(0, MOST).map((one, index, all) => (
          <Related one={one} x={width - BOX.width} y={placeOf(index, all.length, middle)} to={[left + BOX.width, middle]} />
        ))}
        <JobBox one={{ id: job.id, name: job.name, state: job.state, needs: "" }} x={left} y={middle - BOX.height / 2} isSelf />
      </svg>
    </Section>
  );
}

const more = (total: number) => (total > MOST ? ` (${MOST} of ${total.toLocaleString("en-US")})` : "");

const placeOf = (index: number, count: number, middle: number) =>
  middle - (count * (BOX.height + BOX.gap) - BOX.gap) / 2 + index * (BOX.height + BOX.gap);

/** A job on one side, and the line from it to a point of the job in the middle. */
function Related({ one, x, y, to }: { one: RelatedJob; x: number; y: number; to: [number, number] }) {
  const from = [x < to[0] ? x + BOX.width : x, y + BOX.height / 2] as const;
  const turn = (from[0] + to[0]) / 2;
  return (
    <>
      <path d={`M${from[0]},${from[1]} C${turn},${from[1]} ${turn},${to[1]} ${to[0]},${to[1]}`} class="edge" />
      <JobBox one={one} x={x} y={y} />
    </>
  );
}

function JobBox({ one, x, y, isSelf }: { one: RelatedJob; x: number; y: number; isSelf?: boolean }) {
  const words = `${one.id} ${plain(one.name)}, ${WORDS[one.state]}`;
  const body = (
    <>
      <title>{`${words}${one.needs && `; needs it to ${one.needs}`}`}</title>
      <rect x={x} y={y} width={BOX.width} height={BOX.height} rx={5} class={`is-${one.state.toLowerCase()} ${isSelf ? "is-self" : ""}`} />
      <text x={x + 8} y={y + 14} class="name">
        {short(`${one.id} ${plain(one.name)}`)}
      </text>
      <text x={x + 8} y={y + 27}>
        {WORDS[one.state]}
        {one.needs && one.needs !== "succeed" && ` · to ${one.needs}`}
      </text>
    </>
  );
  if (isSelf) return <g>{body}</g>;
  const go = (event: MouseEvent) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    navigate(`jobs/${one.id}`);
  };
  return (
    <a href={`${BASE}jobs/${one.id}`} onClick={go} aria-label={words}>
      {body}
    </a>
  );
}

const short = (text: string) => (text.length > 20 ? `${text.slice(0, 19)}…` : text);
