// BullMQ as a benchmark client: `prepare URL`, `put URL JOBS`, `drip URL RATE`, `work URL CONCURRENCY`. NODE_PATH says where it is.
"use strict";

const { Queue, Worker } = require("bullmq");
const IORedis = require("ioredis");
const { BULK, FLUSH_MS, Tally, count, cpu, drip, now, payloads } = require("../../clients/tally.cjs");

const NAME = "email";
const connect = (url) => new IORedis(url, { maxRetriesPerRequest: null });

const queueOf = (connection) =>
  new Queue(NAME, { connection, defaultJobOptions: { removeOnComplete: true, removeOnFail: true } });

async function put(url, jobs, tally) {
  const connection = connect(url);
  const queue = queueOf(connection);
  const loads = payloads(jobs);
  let start = 0;
  const some = async () => {
    while (start < jobs) {
      const part = loads.slice(start, start + BULK);
      start += BULK;
      const began = now();
      await queue.addBulk(part.map((data) => ({ name: NAME, data })));
      tally.add("enqueue", now() - began);
    }
  };
  await queue.waitUntilReady();
  const [began, spent] = [now(), cpu()];
  await Promise.all([some(), some()]);
  tally.add("whole", now() - began);
  tally.add("cpu", cpu() - spent);
  tally.jobs += jobs;
  await queue.close();
  connection.disconnect();
}

async function work(url, concurrency, tally) {
  setInterval(() => tally.flush(), FLUSH_MS);
  const email = async (job) => count(tally, job.data);
  const worker = new Worker(NAME, email, { connection: connect(url), concurrency });
  worker.on("error", (error) => console.error(error));
  process.once("SIGTERM", async () => {
    await worker.close();
    tally.flush();
    process.exit(0);
  });
}

async function main(what, url, amount) {
  const tally = new Tally(process.env.FOREBAY_TALLY);
  if (what === "work") return work(url, Number(amount), tally);
  if (what === "drip") {
    const queue = queueOf(connect(url));
    await drip(Number(amount), (data) => queue.add(NAME, data));
  }
  if (what === "put") await put(url, Number(amount), tally);
  tally.flush();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
