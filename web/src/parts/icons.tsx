// Shapes of the states: each has a colour, a shape and its name.

import type { JSX } from "preact";
import type { State } from "../types";

const SHAPES: Record<State | "Stopping", JSX.Element> = {
  Running: <path d="M5 3.5v9l7-4.5z" fill="currentColor" />,
  Queued: <path d="M8 4.5V8l2.5 1.5M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2z" class="stroke" />,
  Hold: <path d="M5.5 4v8M10.5 4v8" class="stroke thick" />,
  Finished: <path d="M3.5 8.5l3 3 6-7" class="stroke" />,
  Failed: <path d="M4 4l8 8M12 4l-8 8" class="stroke" />,
  Cancelled: <path d="M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2zM4 12l8-8" class="stroke" />,
  Timeout: <path d="M4 2.5h8M4 13.5h8M5 2.5c0 5 6 6 6 11M11 2.5c0 5-6 6-6 11" class="stroke" />,
  Stopping: <rect x="4" y="4" width="8" height="8" fill="currentColor" />,
};

export function Shape({ of }: { of: State | "Stopping" }) {
  return (
    <svg class="shape" viewBox="0 0 16 16" aria-hidden="true">
      {SHAPES[of]}
    </svg>
  );
}
