// Requests to the daemon. A request shows the session's key in a header; the browser adds the cookie.

const STORED = "gflow-session";
const STORED_USER = "gflow-user";
const HEADER = "X-Gflow-Session";

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}

export type Access = "in" | "out" | "bad-link" | "starting";

let key = localStorage.getItem(STORED) ?? "";
let access: Access = "starting";
const watchers = new Set<(access: Access) => void>();

export function watchAccess(watcher: (access: Access) => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

function setAccess(now: Access): void {
  access = now;
  watchers.forEach((watcher) => watcher(now));
}

export const currentAccess = () => access;

export function sessionHeaders(): Record<string, string> {
  return key ? { [HEADER]: key } : {};
}

/** Exchange the code of a link for a session, or use the session that the browser has. */
export async function begin(): Promise<void> {
  const code = /^#login=([\w-]+)$/.exec(location.hash)?.[1];
  if (code) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      const made = await call<{ session: string; user: string }>("POST", "/web/session", { code });
      adopt(made);
      return setAccess("in");
    } catch {
      if (!key) return setAccess("bad-link");
      // A link that was opened twice; the session of the first time is still there.
    }
  }
  if (!key) return setAccess(code ? "bad-link" : "out");
  // The first view asks at once; an answer 401 ends the session that the browser has.
  setAccess("in");
}

/** Use a new session. A link of another user could be sent to make this one submit jobs there: ask. */
function adopt(made: { session: string; user: string }): void {
  const before = localStorage.getItem(STORED_USER);
  const question = `This link logs you in as ${made.user}. You are logged in as ${before}. Change to ${made.user}?`;
  if (key && before && before !== made.user && !confirm(question)) return;
  key = made.session;
  localStorage.setItem(STORED, key);
  localStorage.setItem(STORED_USER, made.user);
}

export async function logOut(): Promise<void> {
  await call("POST", "/web/logout", { this: true }).catch(() => undefined);
  forget();
}

function forget(): void {
  key = "";
  localStorage.removeItem(STORED);
  localStorage.removeItem(STORED_USER);
  setAccess("out");
}

export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const response = await fetch(path, {
    method,
    headers: {
      Accept: "application/json",
      ...sessionHeaders(),
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    },
    body: body === undefined ? null : JSON.stringify(body),
    credentials: "same-origin",
    redirect: "error",
    ...(signal ? { signal } : {}),
  });
  if (response.ok) return (await response.json()) as T;
  throw await problemOf(response);
}

export async function problemOf(response: Response): Promise<Problem> {
  const found = (await response.json().catch(() => ({}))) as Record<string, string>;
  if (response.status === 401 && access === "in") forget();
  const message = found.title ?? `the daemon answered ${response.status}`;
  return new Problem(response.status, found.code ?? "", message, found.hint ?? "");
}

export const get = <T>(path: string, signal?: AbortSignal) => call<T>("GET", path, undefined, signal);
export const post = <T>(path: string, body: unknown) => call<T>("POST", path, body);

/** A token that makes a repeated submission harmless. */
export function newToken(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return "web-" + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
