//! The tables of the subcommands of `bench`: each column with its title and what it says of a
//! result.

use batchwright_cli::{Column, Field, table};
use clap::ValueEnum as _;

use crate::bench::{
    ApiResult, LimitResult, ManyJobsResult, OneJobResult, PartResult, ShapeResult,
    StoreBenchResult, memory_text,
};

/// Writes a table of results, unless there are none.
pub fn say_table<T>(columns: &[Field<T>], results: &[T]) -> anyhow::Result<()> {
    if !results.is_empty() {
        table(columns, results, false)?;
    }
    Ok(())
}

pub const LIMIT: &[Field<LimitResult>] = &[
    (Column::number("HOPS"), |it, _| it.hops.to_string()),
    (Column::number("ITEMS/MESSAGE"), |it, _| {
        it.bodies.items_per_message.to_string()
    }),
    (Column::number("ITEMS/s"), |it, _| {
        whole(it.items_per_second)
    }),
    (Column::number("OUR µs"), |it, _| {
        tenths(it.cpu_us_per_item.ours)
    }),
    (Column::number("BROKER µs"), |it, _| {
        it.cpu_us_per_item.broker.text()
    }),
    (Column::number("PEAK"), |it, _| {
        memory_text(it.peak_memory_bytes)
    }),
];

/// Of a job, and whether its counts are exact.
pub const JOB: &[Field<(OneJobResult, bool)>] = &[
    (Column::text("BROKER"), |(it, _), _| it.run.broker.clone()),
    (Column::number("ITEMS"), |(it, _), _| it.items.to_string()),
    (Column::number("ITEMS/s"), |(it, _), _| {
        whole(it.run.items_per_second)
    }),
    (Column::number("OUR µs"), |(it, _), _| {
        tenths(it.run.cpu_us_per_item.ours)
    }),
    (Column::number("BROKER µs"), |(it, _), _| {
        it.run.cpu_us_per_item.broker.text()
    }),
    (Column::number("DATABASE µs"), |(it, _), _| {
        it.run.cpu_us_per_item.database.text()
    }),
    (Column::number("PEAK"), |(it, _), _| {
        memory_text(it.run.peak_memory_bytes)
    }),
    (Column::text("EXACT"), |(_, exact), _| yes_or_no(*exact)),
];

/// Of jobs, and whether their counts are exact.
pub const JOBS: &[Field<(ManyJobsResult, bool)>] = &[
    (Column::text("BROKER"), |(it, _), _| it.run.broker.clone()),
    (Column::number("JOBS"), |(it, _), _| it.jobs.to_string()),
    (Column::number("SHARDS"), |(it, _), _| {
        it.tracking_shards.to_string()
    }),
    (Column::number("ITEMS"), |(it, _), _| {
        (it.jobs * it.items_per_job).to_string()
    }),
    (Column::number("ITEMS/s"), |(it, _), _| {
        whole(it.run.items_per_second)
    }),
    (Column::number("OUR µs"), |(it, _), _| {
        tenths(it.run.cpu_us_per_item.ours)
    }),
    (Column::number("BROKER µs"), |(it, _), _| {
        it.run.cpu_us_per_item.broker.text()
    }),
    (Column::number("DATABASE µs"), |(it, _), _| {
        it.run.cpu_us_per_item.database.text()
    }),
    (Column::text("EXACT"), |(_, exact), _| yes_or_no(*exact)),
];

pub const PART: &[Field<PartResult>] = &[
    (Column::text("PART"), |it, _| {
        let name = it.part.to_possible_value();
        name.map_or_else(String::new, |name| name.get_name().to_owned())
    }),
    (Column::number("PROCESSES"), |it, _| {
        it.processes.to_string()
    }),
    (Column::number("µs"), |it, _| tenths(it.cpu_us_per_item)),
    (Column::number("PEAK"), |it, _| {
        memory_text(it.peak_memory_bytes)
    }),
];

pub const STORE: &[Field<StoreBenchResult>] = &[
    (Column::text("STORE"), |it, _| it.store.clone()),
    (Column::number("TASKS/FLUSH"), |it, _| {
        it.tasks_per_flush.to_string()
    }),
    (Column::number("FLUSHES/s"), |it, _| {
        whole(it.flushes_per_second)
    }),
    (Column::number("TASKS/s"), |it, _| {
        whole(it.tasks_per_second)
    }),
    (Column::number("P50 ms"), |it, _| hundredths(it.p50_ms)),
    (Column::number("P99 ms"), |it, _| hundredths(it.p99_ms)),
    (Column::number("OUR µs"), |it, _| {
        tenths(it.our_cpu_us_per_task)
    }),
    (Column::number("DATABASE µs"), |it, _| {
        it.database_cpu_us_per_task.text()
    }),
    (Column::text("EXACT"), |it, _| yes_or_no(it.is_exact)),
];

pub const API: &[Field<ApiResult>] = &[
    (Column::text("REQUEST").cut_to(30), |it, _| {
        it.times.what.clone()
    }),
    (Column::number("OTHER JOBS"), |it, _| {
        it.stored_jobs.to_string()
    }),
    (Column::number("CLIENTS"), |it, _| it.clients.to_string()),
    (Column::number("PER s"), |it, _| whole(it.times.per_second)),
    (Column::number("P50 ms"), |it, _| {
        hundredths(it.times.p50_ms)
    }),
    (Column::number("P99 ms"), |it, _| {
        hundredths(it.times.p99_ms)
    }),
];

pub const SHAPE: &[Field<ShapeResult>] = &[
    (Column::text("SHAPE"), |it, _| it.shape.to_owned()),
    (Column::number("LIMIT/s"), |it, _| whole(it.limit)),
    (Column::number("SYSTEM/s"), |it, _| whole(it.system)),
    (Column::number("RATIO"), |it, _| hundredths(it.ratio.median)),
    (Column::text("(MIN-MAX)"), |it, _| {
        format!("{:.2}-{:.2}", it.ratio.min, it.ratio.max)
    }),
    (Column::number("OUR µs"), |it, _| {
        tenths(it.cpu_us_per_item.ours)
    }),
    (Column::number("BROKER µs"), |it, _| {
        it.cpu_us_per_item.broker.text()
    }),
    (Column::number("DATABASE µs"), |it, _| {
        it.cpu_us_per_item.database.text()
    }),
    (Column::text("EXACT"), |it, _| yes_or_no(it.is_exact)),
];

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

fn tenths(number: f64) -> String {
    format!("{number:.1}")
}

fn hundredths(number: f64) -> String {
    format!("{number:.2}")
}

fn yes_or_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}
