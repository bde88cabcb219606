// The list of jobs: filter and order in the address, arrays and sweeps as one row, any length.

import { useEffect, useRef, useState } from "preact/hooks";
import { clock, full, number, roughly, seconds } from "../format";
import { setQuery, useNow, useReadings, useResource } from "../hooks";
import type { GroupFigures, ListingRow } from "../job_types";
import { A, Badge, JobLink, JobProgress, Loading, Text } from "../parts/ui";
import { Windowed, type Range } from "../parts/window";
import type { Job, JobId, Me, Starts, State } from "../types";
import { countedMembers, Heat, TaskBar } from "./groups";
import { aboutJobs } from "./overview";
import { reasonText } from "./reasons";
import "../jobs.css";
import { rowKey, useRowList, type RowList } from "./row_list";

export const FILTERS: Record<string, { name: string; query: string; states: State[] }> = {
  active: { name: "Active", query: "", states: ["Queued", "Hold", "Running"] },
  running: { name: "Running", query: "states=Running", states: ["Running"] },
  waiting: { name: "Waiting", query: "states=Queued,Hold", states: ["Queued", "Hold"] },
  failed: { name: "Failed", query: "states=Failed,Timeout", states: ["Failed", "Timeout"] },
  ended: { name: "Ended", query: "completed=1", states: ["Finished", "Failed", "Cancelled", "Timeout"] },
  all: { name: "All", query: "all=1", states: ["Queued", "Hold", "Running", "Finished", "Failed", "Cancelled", "Timeout"] },
};
const SORTS: Record<string, string> = {
  "-id": "newest first",
  id: "oldest first",
  state: "by state",
  time: "longest run first",
  name: "by name",
  priority: "by priority",
  gpus: "most GPUs first",
};
const ROW = 40;
const ROW_ON_PHONES = 54;

export function JobsPage({ query, me }: { query: URLSearchParams; me: Me | null }) {
  const state = query.get("state") ?? "active";
  const filter = FILTERS[state] ?? FILTERS.active!;
  const sort = query.get("sort") ?? (state === "active" || state === "waiting" ? "id" : "-id");
  const search = query.get("q") ?? "";
  const user = query.get("user") ?? "";
  const path = listPath(filter.query, sort, search, user);
  const starts = useResource<Starts>("/starts?limit=200", aboutJobs);
  return (
    <>
      <div class="page-head">
        <h1>Jobs</h1>
        <div class="tabs" role="group" aria-label="which jobs">
          {Object.entries(FILTERS).map(([key, { name }]) => (
            <button type="button" aria-pressed={key === state} onClick={() => setQuery({ state: key === "active" ? "" : key, sort: "" })}>
              {name}
            </button>
          ))}
        </div>
        <SearchBox value={search} />
        <label class="field-inline">
          <span class="hidden">order</span>
          <select value={sort} onChange={(event) => setQuery({ sort: event.currentTarget.value })}>
            {Object.entries(SORTS).map(([key, name]) => (
              <option value={key}>{name}</option>
            ))}
          </select>
        </label>
        {me?.system && (
          <label class="check">
            <input
              type="checkbox"
              checked={user === me.user}
              onChange={(event) => setQuery({ user: event.currentTarget.checked ? me.user : "" })}
            />
            only mine
          </label>
        )}
      </div>
      <List
        key={path}
        path={path}
        inside={filter.query.startsWith("states=") ? filter.query : "all=1"}
        starts={new Map((starts.data?.starts ?? []).map((one) => [one.id, one.expected_at]))}
        hasUsers={me?.system ?? false}
        hasGroups={sort === "id" || sort === "-id"}
      />
    </>
  );
}

function listPath(filter: string, sort: string, search: string, user: string): string {
  const parts = [filter, `sort=${encodeURIComponent(sort)}`];
  if (user) parts.push(`users=${encodeURIComponent(user)}`);
  if (/^[\d_,@~-]+$/.test(search)) parts.push(`jobs=${encodeURIComponent(search)}`);
  else if (search) parts.push(`names=${encodeURIComponent(/[*?[]/.test(search) ? search : `*${search}*`)}`);
  return "/jobs?" + parts.filter(Boolean).join("&");
}

function SearchBox({ value }: { value: string }) {
  const [text, setText] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  const change = (now: string) => {
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ q: now.trim() }), 250);
  };
  return (
    <input
      type="search"
      class="search"
      placeholder="name or id"
      aria-label="search jobs by name or id"
      value={text}
      onInput={(event) => change(event.currentTarget.value)}
    />
  );
}

interface ListProps {
  path: string;
  // The query for the jobs of a row that is open.
  inside: string;
  starts: Map<JobId, string>;
  hasUsers: boolean;
  hasGroups: boolean;
}

/** A row that is open: where it is, and how many jobs are listed below it. */
interface Open {
  key: string;
  at: number;
  count: number;
}

function List({ path, inside, starts, hasUsers, hasGroups }: ListProps) {
  const live = useReadings().jobs;
  const list = useRowList(path, hasGroups);
  const [open, setOpen] = useState<Open[]>([]);
  const range = useRef<Range>({ first: 0, last: 0 });
  const lists = useRef(new Map<string, RowList>());
  const places = open
    .map((one) => ({ ...one, at: list.indexOf(one.key) < 0 ? one.at : list.indexOf(one.key) }))
    .sort((a, b) => a.at - b.at);
  const toggle = (key: string, at: number) =>
    setOpen((now) => (now.some((one) => one.key === key) ? now.filter((one) => one.key !== key) : [...now, { key, at, count: 1 }]));
  const spread = (now: Range) => {
    range.current = now;
    list.want(rowsIn(now, places));
    for (const one of places) lists.current.get(one.key)?.want(jobsIn(now, one, places));
  };
  useEffect(() => spread(range.current), [open, list.version]);
  if (list.count === null) return list.error ? <p class="notice is-failed">{list.error}</p> : <Loading />;
  if (!list.count) return <p class="empty">No jobs match. A new one: the button at the top, or gbatch.</p>;
  const count = list.count + places.reduce((sum, one) => sum + one.count, 0);
  return (
    <>
      {places.map((one) => (
        <Inside
          key={one.key}
          path={`/jobs?${inside}&jobs=${one.key}&sort=id`}
          onChange={(found) => {
            lists.current.set(one.key, found);
            const jobs = Math.max(1, found.count ?? 1);
            setOpen((now) => now.map((other) => (other.key === one.key ? { ...other, count: jobs } : other)));
          }}
        />
      ))}
      <div class={`table ${hasUsers ? "has-users" : ""}`} role="table" aria-label="jobs" aria-rowcount={count + 1}>
        <div class="row head" role="row">
          <span role="columnheader" class="cell-job">
            <span class="toggle" />
            Job
          </span>
          {hasUsers && <span role="columnheader">User</span>}
          <span role="columnheader">State</span>
          <span role="columnheader">GPUs</span>
          <span role="columnheader">Run time</span>
          <span role="columnheader">Details</span>
        </div>
        <Windowed
          count={count}
          height={matchMedia("(max-width: 760px)").matches ? ROW_ON_PHONES : ROW}
          label="jobs"
          onRange={spread}
          row={(index) => {
            const place = placeAt(index, places);
            const row = place.inside ? lists.current.get(place.inside)?.row(place.at) : list.row(place.at);
            if (!row) return <div key={index} class="row is-missing" role="row" aria-hidden="true" />;
            const progress = live.get(row.job.id);
            const job = progress ? { ...row.job, progress } : row.job;
            const key = rowKey(row);
            return (
              <JobRow
                key={`${place.inside} ${key}`}
                row={{ ...row, job }}
                depth={place.inside ? 1 : 0}
                isOpen={open.some((one) => one.key === key)}
                starts={starts}
                hasUsers={hasUsers}
                onToggle={() => toggle(key, place.at)}
              />
            );
          }}
        />
      </div>
      <p class="muted">
        {number(list.jobs)} job{list.jobs === 1 ? "" : "s"}
      </p>
    </>
  );
}

/** Loads the jobs of an open row; it draws nothing. */
function Inside({ path, onChange }: { path: string; onChange: (list: RowList) => void }) {
  const list = useRowList(path, false);
  useEffect(() => onChange(list), [list.version, list.count]);
  return null;
}

/** What is at a line of the list: a row, or a job inside an open one. */
function placeAt(line: number, places: Open[]): { inside: string; at: number } {
  let above = 0;
  for (const one of places) {
    const first = one.at + 1 + above;
    if (line < first) break;
    if (line < first + one.count) return { inside: one.key, at: line - first };
    above += one.count;
  }
  return { inside: "", at: line - above };
}

function rowsIn(lines: Range, places: Open[]): Range {
  const rowAt = (line: number) => {
    const place = placeAt(line, places);
    return place.inside ? (places.find((one) => one.key === place.inside)?.at ?? 0) : place.at;
  };
  return { first: rowAt(lines.first), last: rowAt(Math.max(lines.first, lines.last - 1)) + 1 };
}

function jobsIn(lines: Range, open: Open, places: Open[]): Range {
  const above = places.filter((one) => one.at < open.at).reduce((sum, one) => sum + one.count, 0);
  const top = open.at + 1 + above;
  const within = (line: number) => Math.min(open.count, Math.max(0, line - top));
  return { first: within(lines.first), last: Math.max(1, within(lines.last)) };
}

interface RowProps {
  row: ListingRow;
  depth: number;
  isOpen: boolean;
  starts: Map<JobId, string>;
  hasUsers: boolean;
  onToggle: () => void;
}

function JobRow({ row, depth, isOpen, starts, hasUsers, onToggle }: RowProps) {
  const { job, group } = row;
  return (
    <div class={`row depth-${depth}`} role="row">
      <span role="cell" class="cell-job">
        {group ? (
          <button
            type="button"
            class="quiet toggle"
            aria-expanded={isOpen}
            aria-label={`${isOpen ? "hide" : "show"} the jobs of ${group.id}`}
            onClick={onToggle}
          >
            <span class={`arrow ${isOpen ? "is-open" : ""}`} />
          </button>
        ) : (
          <span class="toggle" />
        )}
        {group ? (
          <A to={typeof group.id === "number" ? `jobs/${group.id}` : `sweeps/${group.id}`} class="job-link">
            <span class="id">{group.id}</span>
            <Text class="name">{group.name}</Text>
          </A>
        ) : (
          <JobLink id={job.id} name={depth ? insideName(job) : job.name} />
        )}
      </span>
      {hasUsers && (
        <span role="cell" class="cell-user">
          <Text>{job.user}</Text>
        </span>
      )}
      <span role="cell" class="cell-state">
        {group ? <span class="muted">{number(group.total)} jobs</span> : <Badge state={job.state} stopping={job.stopping} />}
      </span>
      <span role="cell" class="num cell-gpus">
        {job.gpus || ""}
      </span>
      <span role="cell" class="num cell-time">
        {group ? <GroupTime group={group} /> : <Time job={job} />}
      </span>
      <span role="cell" class="cell-why">
        {group ? <GroupProgress group={group} /> : <Detail job={job} start={starts.get(job.id) ?? null} />}
      </span>
    </div>
  );
}

/** What tells a job from the others of its group: the tasks that wait, its parameters, or its name. */
function insideName(job: Job): string {
  if (job.tasks) return `${number(job.tasks.waiting)} tasks wait: ${job.tasks.pending}`;
  const parameters = Object.entries(job.parameters).map(([name, value]) => `${name}=${value}`);
  return parameters.join(" ") || job.name;
}

function GroupProgress({ group }: { group: GroupFigures }) {
  const members = countedMembers(group.total, group.counts, group.jobs ?? []);
  const left = group.left_s === null ? "" : `${roughly(group.left_s)} left`;
  return (
    <>
      {group.jobs ? <Heat members={members} /> : <TaskBar members={members} />}
      {left && <span class="muted nowrap">{left}</span>}
    </>
  );
}

function GroupTime({ group }: { group: GroupFigures }) {
  const now = useNow();
  if (!group.started_at) return null;
  const end = group.finished_at ? seconds(group.finished_at) : now / 1000;
  return <>{roughly(end - seconds(group.started_at))}</>;
}

function Time({ job }: { job: Job }) {
  const now = useNow();
  if (job.state === "Running" && job.started_at) return <>{roughly(now / 1000 - seconds(job.started_at))}</>;
  return <>{job.ran_s === null ? "" : roughly(job.ran_s)}</>;
}

function Detail({ job, start }: { job: Job; start: string | null }) {
  if (job.tasks) return job.reason ? <Text>{reasonText(job)}</Text> : null;
  if (job.state === "Running") return job.progress?.percent != null ? <JobProgress job={job} /> : null;
  if (job.state === "Queued" || job.state === "Hold") {
    return (
      <>
        {job.reason && <Text>{reasonText(job)}</Text>}
        {start && (
          <span class="muted nowrap" title={full(start)}>
            starts about {clock(start)}
          </span>
        )}
      </>
    );
  }
  return (
    <>
      {job.finished_at && (
        <span class="muted nowrap" title={full(job.finished_at)}>
          ended {clock(job.finished_at)}
        </span>
      )}
      {job.state !== "Finished" && <Text>{reasonText(job)}</Text>}
    </>
  );
}
