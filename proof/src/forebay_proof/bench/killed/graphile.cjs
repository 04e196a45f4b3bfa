// graphile-worker in `bench.recovery`: `prepare`, `put JOBS`, `work`. NODE_PATH says where it is.
"use strict";

const { makeWorkerUtils, run: runWorker } = require("graphile-worker");
const { nap, run } = require("./nap.cjs");

run(async (url, what, jobs) => {
  if (what === "work") {
    const runner = await runWorker({ connectionString: url, taskList: { nap: ({ number }) => nap(number) } });
    return runner.promise;
  }
  const utils = await makeWorkerUtils({ connectionString: url });
  if (what === "prepare") await utils.migrate();
  for (let number = 0; number < jobs; number++) await utils.addJob("nap", { number });
  await utils.release();
});
