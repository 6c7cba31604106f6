#!/usr/bin/env python3
"""Writes an archive of the upgrade test with a build of Batchwright that a later one must be able to take over.

    make_fixtures.py BATCHWRIGHT fixtures/sqlite                             # everything embedded
    make_fixtures.py BATCHWRIGHT fixtures/postgres postgres://…/postgres     # jobs in a new database of this server

Write both with the program of each release, and replace those of the release before. The script runs jobs into
different states, two of them into the middle of their second round, kills the process with SIGKILL, and leaves
`jobs.db.gz` and `broker.db.gz`, or `database.sql.gz` and `broker.db.gz`, in the folder. How far the running jobs get
differs from run to run: it fails if a job that should run has ended; then run it again.
"""

import base64
import gzip
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request

MODIFIED = 1767225600
TRACKING = "worker-jobtracking-in"
# Large enough that their jobs are still under way at the end.
FILES = {"running.txt": ("a", 20000), "again.txt": ("b", 4000), "paused.txt": ("c", 1000), "waits.txt": ("e", 100),
         "mended.txt": ("g", 4000)}
SERVICE = "http://127.0.0.1:28080/job-service/v1"
BASE = f"{SERVICE}/partitions/default"


def write_files(root):
    for name, (letter, lines) in FILES.items():
        write(f"{root}/{name}", "".join(f"{letter}{n}\n" for n in range(1, lines + 1)).encode())
    # The seventh line is not UTF-8: its task fails.
    write(f"{root}/bad.txt", b"".join(b"\xff\xfe\n" if n == 7 else b"f%d\n" % n for n in range(1, 41)))
    # Each hundredth line is not UTF-8: its task fails in every round.
    write(f"{root}/rough.txt", b"".join(b"\xff\xfe\n" if n % 100 == 0 else b"h%d\n" % n for n in range(1, 4001)))


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)
    os.utime(path, (MODIFIED, MODIFIED))


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    url = path if path.startswith(SERVICE) else BASE + path
    request = urllib.request.Request(url, method=method, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        text = response.read()
    return json.loads(text) if text else None


def job(name):
    return call("GET", f"/jobs/{name}")


def put(name, file, **options):
    batch = {"batchType": "lines", "batchDefinition": json.dumps({"files": [file], "linesPerItem": 1}),
             "targetPipe": "worker-example-in"}
    task = {"taskClassifier": "BatchWorker", "taskApiVersion": 1, "taskPipe": "worker-batch-in",
            "targetPipe": "worker-example-out", "taskData": batch}
    call("PUT", f"/jobs/{name}", {"name": name, "labels": {"made:by": "the release before"}, "task": task, **options})


def put_simulated(name, *steps, **options):
    """Creates a job of a single task of the simulation worker."""
    task = {"taskClassifier": "Simulation", "taskApiVersion": 1, "taskPipe": "worker-simulation-in",
            "taskData": {"name": name, "steps": steps}}
    call("PUT", f"/jobs/{name}", {"name": name, "task": task, **options})


def wait_until(what, condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    sys.exit(f"gave up waiting until {what}")


def is_up():
    try:
        call("GET", "/jobs")
        return True
    except OSError:
        return False


def run_jobs():
    put("done", "waits.txt")
    wait_until("done is Completed", lambda: job("done")["status"] == "Completed")
    put("failed", "bad.txt")
    wait_until("failed is Failed", lambda: job("failed")["status"] == "Failed")
    # An id with a second incarnation.
    put("again", "waits.txt")
    wait_until("again is Completed", lambda: job("again")["status"] == "Completed")
    call("DELETE", "/jobs/again")
    put("continued", "bad.txt", onFailure="continue")
    wait_until("continued has a failure", lambda: job("continued")["failures"])
    # A task that waits for a condition, and one that was given up; both do their work the next time.
    put_simulated("blocked", {"action": "BLOCK", "untilBlock": 1, "policy": "constant,delay=1d"})
    wait_until("blocked waits", lambda: job("blocked").get("blocked"))
    put_simulated("given-up", {"action": "FAIL", "message": "no luck", "untilRound": 2},
                  retry="constant,delay=1s,attempts=1")
    wait_until("given-up has a dead letter", lambda: call("GET", f"{SERVICE}/deadLetters")["deadLetters"])
    # A task that waits for another attempt.
    put_simulated("retried", {"action": "FAIL", "message": "not yet", "untilAttempt": 2}, retry="constant,delay=1m")
    wait_until("retried waits", lambda: job("retried").get("failedAttempts"))
    put("paused", "paused.txt")
    wait_until("paused is half done", lambda: job("paused")["completedItems"] > 50)
    call("POST", "/jobs/paused/pause")
    # Two jobs that are cancelled in the middle of their first round, and taken up again later.
    for name, options in [("mended", {}), ("rough", {"onFailure": "continue"})]:
        put(name, f"{name}.txt", **options)
        wait_until(f"{name} has begun", lambda: job(name)["completedItems"] > 200)
        call("POST", f"/jobs/{name}/cancel")
    put("running", "running.txt")
    put("again", "again.txt")
    put("waits", "waits.txt", prerequisiteJobIds=["running"])
    put("delayed", "waits.txt", delay=4)
    put("cancelled", "again.txt")
    wait_until("cancelled is Active", lambda: job("cancelled")["status"] == "Active")
    call("POST", "/jobs/cancelled/cancel")
    wait_until("running has begun", lambda: job("running")["completedItems"] > 200)
    done = {name: job(name)["completedItems"] for name in ["mended", "rough"]}
    for name in done:
        call("POST", f"/jobs/{name}/retry")
    wait_until("the second round has begun", lambda: all(job(name)["completedItems"] > done[name] + 50 for name in done))
    for state in call("GET", "/jobs"):
        print(state["id"], state["status"], state.get("round"), state["completedItems"], state["failedTasks"])
        if state["status"] in ["Completed", "Failed"] and state["id"] in ["retried", "running", "again", "mended", "rough"]:
            sys.exit(f"{state['id']} has ended; run it again")


def send_late_reports(path):
    """Puts reports of the first round into the tracking pipe, about tasks that wait in the second."""
    database = sqlite3.connect(path)
    pipes = {name: (number, handed_out) for number, name, handed_out in database.execute("select number, name, handed_out from pipe")}
    waiting = {"mended": [], "rough": []}
    for pipe in ["worker-example-in.bundles", "worker-example-in"]:
        if pipe not in pipes:
            continue
        for (body,) in database.execute("select body from message where id >> 40 = ? order by id", (pipes[pipe][0],)):
            lines = body.split(b"\n")
            task = json.loads(lines[0])["tracking"]["jobTaskId"]
            found = re.fullmatch(r"default:(mended|rough)!\d+r2\.(.*)", task)
            if found and pipe == "worker-example-in":
                waiting[found[1]].append(found[2])
            elif found:
                waiting[found[1]] += [f"{found[2]}.{member[0]}" for member in json.loads(lines[1])]
    number, handed_out = pipes[TRACKING]
    (last,) = database.execute("select coalesce(max(id), 0) from message where id >> 40 = ?", (number,)).fetchone()
    at = max(last, handed_out)
    for name, tasks in waiting.items():
        tasks = [f"default:{name}.{task}" for task in tasks]
        if len(tasks) < 3:
            sys.exit(f"only {len(tasks)} items of {name} wait; run it again")
        print(name, len(tasks), "items wait; late reports of", tasks[-1], tasks[-2], tasks[-3])
        failure = {"failureId": "LATE", "failureTime": 1, "failureSource": "round 1", "failureMessage": "late"}
        reports = [{"jobTaskId": task, "status": "Failed", "failure": failure} for task in tasks[-2:]]
        reports.append({"jobTaskId": tasks[-3], "status": "Complete"})
        data = base64.b64encode(json.dumps({"trackingReports": reports}).encode()).decode()
        message = {"version": 3, "taskId": f"late-{name}", "taskClassifier": "TrackingReportTask", "taskApiVersion": 1,
                   "taskData": data, "taskStatus": "NEW_TASK", "context": {}, "to": TRACKING}
        at += 1
        database.execute("insert into message (id, delivery_count, sent, body) values (?, 0, ?, ?)",
                         (at, int(time.time()), json.dumps(message).encode()))
    database.commit()
    database.close()


def pack(path, target):
    if path.endswith(".db"):
        database = sqlite3.connect(path)
        database.execute("pragma wal_checkpoint(truncate)")
        database.execute("vacuum")
        database.close()
    with open(path, "rb") as file:
        content = file.read()
    with open(target, "wb") as file:
        file.write(gzip.compress(content, 9, mtime=0))


def main(binary, folder, server=None):
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        root, data = f"{work}/root", f"{work}/data"
        os.mkdir(root)
        write_files(root)
        command = [binary, "up", "--data", data, "--root", root, "--listen", "127.0.0.1:28080", "--max-parts", "50",
                   "--max-depth", "200", "--concurrency", "1", "--prefetch", "4"]
        if server:
            subprocess.run(["psql", server, "-qc", "create database upgrade_fixture"], check=True)
            database = server.rsplit("/", 1)[0] + "/upgrade_fixture"
            command += ["--database", database]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until("the service is up", is_up)
            run_jobs()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        send_late_reports(f"{data}/broker.db")
        pack(f"{data}/broker.db", f"{folder}/broker.db.gz")
        if server:
            dump = subprocess.run(["pg_dump", "--inserts", "--rows-per-insert=100", "--no-owner", "--no-privileges", database],
                                  check=True, capture_output=True).stdout
            # Only the psql of the same release knows these two.
            kept = b"".join(line for line in dump.splitlines(True) if not line.startswith((b"\\restrict", b"\\unrestrict")))
            with open(f"{folder}/database.sql.gz", "wb") as file:
                file.write(gzip.compress(kept, 9, mtime=0))
            subprocess.run(["psql", server, "-qc", "drop database upgrade_fixture"], check=True)
        else:
            pack(f"{data}/jobs.db", f"{folder}/jobs.db.gz")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
