// Answers of the API, as far as the page uses them. `gflow api` prints the full description.

export type JobId = number | string;

export type State = "Queued" | "Hold" | "Running" | "Finished" | "Failed" | "Cancelled" | "Timeout";

export interface Progress {
  step: number;
  steps: number | null;
  percent: number | null;
  epoch: number | null;
  epochs: number | null;
  loss: number | null;
  samples_per_s: number | null;
  left_s: number | null;
  metrics: Record<string, number>;
  at: string;
}

export interface Tasks {
  pending: string;
  waiting: number;
  active: number;
  finished: number;
  failed: number;
  cancelled: number;
}

export interface Job {
  id: JobId;
  array_id: number | null;
  task_id: number | null;
  name: string;
  user: string;
  project: string | null;
  state: State;
  reason: string | null;
  stopping: boolean;
  exit_code: number | null;
  signal: number | null;
  attempt: number;
  tasks: Tasks | null;
  progress: Progress | null;
  gpus: number;
  gpu_ids: number[];
  simulated: boolean;
  priority: number;
  submitted_at: string;
  started_at: string | null;
  finished_at: string | null;
  ran_s: number | null;
  time_limit_s: number | null;
  cpu_time_s: number | null;
  peak_memory_mib: number | null;
  cpus: number;
  memory_mib: number | null;
  gpu_memory_mib: number | null;
  shared: boolean;
  begin_at: string | null;
  depends_on: JobId[];
  depends_any: JobId[];
  command: string[];
  script: string | null;
  cwd: string;
  target: string;
  target_id: string | null;
  target_nodes: string | null;
  group_id: number | null;
  max_concurrent: number | null;
  parameters: Record<string, string>;
  command_template: string[] | null;
  redone_from: JobId | null;
  max_retries: number;
  retries: number;
  retry_at: string | null;
  comment: string | null;
  asked: Record<string, unknown>;
}

export interface Jobs {
  jobs: Job[];
  total: number;
}

export interface Holder {
  id: JobId | null;
  name: string;
  user: string;
  used_mib: number | null;
  limit_mib: number | null;
  started_at: string | null;
  ends_at: string | null;
}

export interface Gpu {
  index: number;
  uuid: string;
  model: string;
  memory_mib: number;
  simulated: boolean;
  available: boolean;
  reason: string | null;
  jobs: JobId[];
  used_mib: number | null;
  utilisation?: number | null;
  temperature?: number | null;
  power_w?: number | null;
  clock_mhz?: number | null;
  slowed?: string[];
  idle_s: number | null;
  idle_s_at_least: boolean;
  free_at: string | null;
  holders: Holder[];
  processes: { pid: number; user: string; command: string; memory_mib: number | null; tolerated: string }[];
  reserved: { user: string; start: string; end: string }[];
}

export interface Info {
  gpus: Gpu[];
  allowed_gpu_indices: number[] | null;
  trouble: string;
  driver: string;
  drained: boolean;
  reason: string | null;
  drained_gpus: Record<string, string>;
}

export interface Status {
  version: string;
  uptime_secs: number;
  gpu_total: number;
  gpu_available: number;
  gpu_simulated: boolean;
  cpu_total: number;
  cpu_available: number;
  memory_total_mib: number;
  memory_available_mib: number;
  read_only: string;
  running: number;
  waiting: number;
  notes: string[];
  settings: Record<string, { value: unknown; origin: string }>;
}

export interface Me {
  user: string;
  operator: boolean;
  home: string;
  host: string;
  system: boolean;
  version: string;
  session_ends_at: string | null;
}

export interface Happening {
  id: number;
  event: string;
  at: string;
  detail: string;
  job_id: JobId | null;
  job: Job | null;
}

export interface Readings {
  gpus: { index: number; utilisation: number | null; used_mib: number | null; temperature: number | null; power_w: number | null }[];
  jobs: { id: JobId; progress: Progress }[];
}

export interface Why {
  state: State;
  reason: string | null;
  blockers: { code: string; detail: string }[];
  start: { expected: number; earliest: number; latest: number } | null;
  instead: string[];
  limits: string[];
}

export interface Starts {
  starts: { id: JobId; expected_at: string }[];
  total: number;
}

export interface History {
  events: { at: string; event: string; detail: string; by: string | null; origin: string }[];
}

export interface Used {
  at: string;
  gpu: number | string;
  span_s: number;
  busy: number | null;
  busy_most: number | null;
  memory_mib: number | null;
  power_w: number | null;
  temperature: number | null;
}

export interface Usage {
  predicted_mib: number | null;
  samples: Used[];
  totals: Used[];
  nodes: unknown[] | null;
}

export interface ProgressPoints {
  points: { at: string; attempt: number; step: number; loss: number | null; metrics: Record<string, number> }[];
}

export interface GpuHistory {
  span_s: number;
  points: { at: string; gpu: number; busy: number | null; memory_mib: number | null; power_w: number | null; temperature: number | null }[];
}

export interface Output {
  start: number;
  end: number;
  size: number;
  final: boolean;
  text: string;
  line: number | null;
}

export interface Figures {
  total_jobs: number;
  completed_jobs: number;
  failed_jobs: number;
  cancelled_jobs: number;
  timeout_jobs: number;
  running_jobs: number;
  queued_jobs: number;
  avg_wait_secs: number | null;
  avg_runtime_secs: number | null;
  total_gpu_hours: number;
  success_rate: number | null;
}

export interface Stats extends Figures {
  peak_gpu_usage: number;
  simulated: boolean;
  top_jobs: { id: JobId; name: string; user: string; state: State; runtime_secs: number; gpus: number }[];
  by_user: (Figures & { user: string })[];
  by_project: (Figures & { project: string | null })[];
}

export interface Reservation {
  id: number;
  user: string;
  gpu_indices: number[];
  start_time: number;
  end_time: number;
  status: string;
}

export const WAITING: State[] = ["Queued", "Hold"];
export const isFinal = (state: State) => !["Queued", "Hold", "Running"].includes(state);
