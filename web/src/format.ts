// Texts for durations, sizes, times and numbers.

export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** One unit, for places with little room. */
export function roughly(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.round(whole / 60)} min`;
  if (whole < 86_400) return `${(whole / 3600).toFixed(whole < 36_000 ? 1 : 0).replace(/\.0$/, "")} h`;
  return `${Math.round(whole / 86_400)} d`;
}

const pad = (value: number) => String(value).padStart(2, "0");

export function memory(mib: number): string {
  return mib < 1024 ? `${Math.round(mib)} MiB` : `${trim(mib / 1024)} GiB`;
}

/** GiB on the axis of a chart: round numbers in one unit. */
export const gib = (value: number) => `${trim(value)} GiB`;

export function trim(value: number): string {
  return value.toFixed(value < 10 ? 1 : 0).replace(/\.0$/, "");
}

export function number(value: number): string {
  return value.toLocaleString("en-US");
}

export function significant(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

const DAY = 86_400_000;

/** A time as people say it: 14:05, tomorrow 09:00, 3 Nov 14:05. */
export function clock(at: string | number | null, now = Date.now()): string {
  if (at === null) return "";
  const date = new Date(typeof at === "number" ? at * 1000 : at);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const days = Math.round((midnight(date.getTime()) - midnight(now)) / DAY);
  if (days === 0) return time;
  if (days === 1) return `tomorrow ${time}`;
  if (days === -1) return `yesterday ${time}`;
  const year = date.getFullYear() === new Date(now).getFullYear() ? undefined : "numeric";
  return `${date.toLocaleDateString([], { day: "numeric", month: "short", year })} ${time}`;
}

function midnight(time: number): number {
  return new Date(time).setHours(0, 0, 0, 0);
}

export function full(at: string | number | null): string {
  if (at === null) return "";
  return new Date(typeof at === "number" ? at * 1000 : at).toLocaleString();
}

export const seconds = (at: string) => new Date(at).getTime() / 1000;

/** Text of users and programs as it may be shown: control and direction characters become visible. */
export function plain(text: string): string {
  return text.replace(
    // eslint-disable-next-line no-control-regex
    /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** A command as it would be typed in a shell. */
export function shell(words: string[]): string {
  return words.map(quote).join(" ");
}

export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
