//! The tables of the subcommands of `bench`: each column with its title and what it says of a
//! result.

use batchwright_cli::{Field, columns, table};
use clap::ValueEnum as _;

use crate::bench::{
    ApiResult, LimitResult, ManyJobsResult, OneJobResult, PartResult, ShapeResult, memory_text,
};

/// Writes a table of results, unless there are none.
pub fn say_table<T>(columns: &[Field<T>], results: &[T]) -> anyhow::Result<()> {
    if !results.is_empty() {
        table(columns, results, false)?;
    }
    Ok(())
}

pub const LIMIT: &[Field<LimitResult>] = columns!(|it, now| {
    number("HOPS") => it.hops.to_string();
    number("ITEMS/MESSAGE") => it.bodies.items_per_message.to_string();
    number("ITEMS/s") => whole(it.items_per_second);
    number("OUR µs") => tenths(it.cpu_us_per_item.ours);
    number("BROKER µs") => it.cpu_us_per_item.broker.text();
    number("PEAK") => memory_text(it.peak_memory_bytes);
});

/// Of a job, and whether its counts are exact.
pub const JOB: &[Field<(OneJobResult, bool)>] = columns!(|it, now| {
    text("BROKER") => it.0.run.broker.clone();
    number("ITEMS") => it.0.items.to_string();
    number("ITEMS/s") => whole(it.0.run.items_per_second);
    number("OUR µs") => tenths(it.0.run.cpu_us_per_item.ours);
    number("BROKER µs") => it.0.run.cpu_us_per_item.broker.text();
    number("DATABASE µs") => it.0.run.cpu_us_per_item.database.text();
    number("PEAK") => memory_text(it.0.run.peak_memory_bytes);
    text("EXACT") => yes_or_no(it.1);
});

/// Of jobs, and whether their counts are exact.
pub const JOBS: &[Field<(ManyJobsResult, bool)>] = columns!(|it, now| {
    text("BROKER") => it.0.run.broker.clone();
    number("JOBS") => it.0.jobs.to_string();
    number("SHARDS") => it.0.tracking_shards.to_string();
    number("ITEMS") => (it.0.jobs * it.0.items_per_job).to_string();
    number("ITEMS/s") => whole(it.0.run.items_per_second);
    number("OUR µs") => tenths(it.0.run.cpu_us_per_item.ours);
    number("BROKER µs") => it.0.run.cpu_us_per_item.broker.text();
    number("DATABASE µs") => it.0.run.cpu_us_per_item.database.text();
    text("EXACT") => yes_or_no(it.1);
});

pub const PART: &[Field<PartResult>] = columns!(|it, now| {
    text("PART") => {
        let name = it.part.to_possible_value();
        name.map_or_else(String::new, |name| name.get_name().to_owned())
    };
    number("PROCESSES") => it.processes.to_string();
    number("µs") => tenths(it.cpu_us_per_item);
    number("PEAK") => memory_text(it.peak_memory_bytes);
});

pub const API: &[Field<ApiResult>] = columns!(|it, now| {
    text("REQUEST").cut_to(30) => it.times.what.clone();
    number("OTHER JOBS") => it.stored_jobs.to_string();
    number("CLIENTS") => it.clients.to_string();
    number("PER s") => whole(it.times.per_second);
    number("P50 ms") => hundredths(it.times.p50_ms);
    number("P99 ms") => hundredths(it.times.p99_ms);
});

pub const SHAPE: &[Field<ShapeResult>] = columns!(|it, now| {
    text("SHAPE") => it.shape.to_owned();
    number("LIMIT/s") => whole(it.limit);
    number("SYSTEM/s") => whole(it.system);
    number("RATIO") => hundredths(it.ratio.median);
    text("(MIN-MAX)") => format!("{:.2}-{:.2}", it.ratio.min, it.ratio.max);
    number("OUR µs") => tenths(it.cpu_us_per_item.ours);
    number("BROKER µs") => it.cpu_us_per_item.broker.text();
    number("DATABASE µs") => it.cpu_us_per_item.database.text();
    text("EXACT") => yes_or_no(it.is_exact);
});

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
