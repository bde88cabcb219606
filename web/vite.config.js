import { defineConfig } from "vite";

// Fixed names: the daemon sends an ETag with each file, and a rebuild changes as few lines as possible.
export default defineConfig({
  base: "/web/",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: "../src/gflow/web",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        chunkFileNames: "[name].js",
        assetFileNames: "[name][extname]",
      },
    },
  },
});
