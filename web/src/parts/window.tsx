// A list that draws only the rows in view: any number of rows costs the same.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

// Rows drawn beyond both ends of the view.
const BEYOND = 12;

export interface Range {
  first: number;
  last: number;
}

/** Draws `row(i)` for the rows in view. It scrolls with the page, so that the browser's own keys work. */
export function Windowed({
  count,
  height,
  row,
  onRange,
  label,
}: {
  count: number;
  height: number;
  row: (index: number) => ComponentChildren;
  onRange?: (range: Range) => void;
  label: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState<Range>({ first: 0, last: 40 });
  useEffect(() => {
    const look = () => {
      const top = box.current?.getBoundingClientRect().top ?? 0;
      const first = Math.max(0, Math.floor(-top / height) - BEYOND);
      const last = Math.min(count, Math.ceil((window.innerHeight - top) / height) + BEYOND);
      setRange((before) => (before.first === first && before.last === last ? before : { first, last }));
    };
    look();
    window.addEventListener("scroll", look, { passive: true });
    window.addEventListener("resize", look);
    return () => {
      window.removeEventListener("scroll", look);
      window.removeEventListener("resize", look);
    };
  }, [count, height]);
  useEffect(() => onRange?.(range), [range, count]);
  const shown = [];
  for (let index = range.first; index < Math.min(range.last, count); index++) shown.push(row(index));
  return (
    <div ref={box} class="window" style={{ height: `${count * height}px` }} role="rowgroup" aria-label={label}>
      <div class="window-rows" style={{ transform: `translateY(${range.first * height}px)` }} role="presentation">
        {shown}
      </div>
    </div>
  );
}
