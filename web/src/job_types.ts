// Answers about rows of listings, groups, logs and causes.

import type { Job, JobId, State } from "./types";

export interface Counts {
  running: number;
  waiting: number;
  held: number;
  finished: number;
  failed: number;
  cancelled: number;
  stopped_early: number;
}

export interface GroupFigures {
  id: JobId;
  name: string;
  total: number;
  counts: Counts;
  progress: number;
  left_s: number | null;
  started_at: string | null;
  finished_at: string | null;
  jobs: { id: JobId; state: State }[] | null;
}

export interface ListingRow {
  job: Job;
  group: GroupFigures | null;
}

export interface Rows {
  rows: ListingRow[];
  total: number | null;
  next: string | null;
  jobs: number;
}

export interface RankedJob {
  id: JobId;
  state: State;
  value: number;
  parameters: Record<string, string>;
}

export interface FailedJob {
  id: JobId;
  state: State;
  reason: string | null;
  exit_code: number | null;
  parameters: Record<string, string>;
}

export interface Group {
  id: JobId;
  name: string;
  user: string;
  total: number;
  counts: Counts;
  progress: number;
  left_s: number | null;
  ends_at: string | null;
  started_at: string | null;
  finished_at: string | null;
  metric: string;
  best: RankedJob | null;
  worst: RankedJob | null;
  parameters: Record<string, string[]>;
  failed_jobs: FailedJob[];
}

export interface Shown {
  jobs: Job[];
  total: number;
  group: Group | null;
}

export interface Result {
  id: JobId;
  name: string;
  parameters: Record<string, string>;
  metrics: Record<string, number>;
  state: State;
  reason: string | null;
  exit_code: number | null;
  run_s: number | null;
  attempts: number;
}

export interface Results {
  results: Result[];
  total: number;
}

export interface FoundLine {
  line: number;
  offset: number;
  text: string;
}

export interface Search {
  size: number;
  found: FoundLine[];
  next: { offset: number; line: number } | null;
}

/** A fact that a cause rests on: a line of the log, or one of another source. */
export interface Evidence {
  text: string;
  source: string;
  line: number | null;
  rank: number | null;
  offset: number | null;
}

export interface Finding {
  cause: string;
  summary: string;
  confidence: string;
  advice: string[];
  evidence: Evidence | null;
  support: Evidence[];
  frame: { file: string; line: number; function: string; code: string } | null;
}

export interface Diagnosis {
  cause: string | null;
  findings: Finding[];
  last_lines: string[];
  log_error: string | null;
}

export interface RelatedJob {
  id: JobId;
  name: string;
  state: State;
  needs: string;
}

export interface Dependencies {
  parents: RelatedJob[];
  parents_total: number;
  children: RelatedJob[];
  children_total: number;
}
