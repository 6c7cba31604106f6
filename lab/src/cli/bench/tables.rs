//! The tables of the subcommands of `bench`: each column with its title and what it says of a
//! result.

use batchwright_cli::{Column, say, table, width_of_output};
use clap::ValueEnum as _;

use crate::bench::{
    ApiResult, LimitResult, ManyJobsResult, OneJobResult, PartResult, ShapeResult,
    StoreBenchResult, memory_text,
};

/// A column, and what it says of a result.
type Told<T> = (Column, fn(&T) -> String);

/// Writes a table of results, unless there are none.
pub fn say_table<T>(columns: &[Told<T>], results: &[T]) -> anyhow::Result<()> {
    if results.is_empty() {
        return Ok(());
    }
    let titles: Vec<Column> = columns.iter().map(|(title, _)| *title).collect();
    let row = |result| columns.iter().map(|(_, tell)| tell(result)).collect();
    let rows: Vec<Vec<String>> = results.iter().map(row).collect();
    for line in table(&titles, &rows, width_of_output()) {
        say!("{line}");
    }
    Ok(())
}

// The processor time: microseconds for an item.
const OURS: Column = Column::number("OUR µs");
const BROKER: Column = Column::number("BROKER µs");
const DATABASE: Column = Column::number("DATABASE µs");
const ITEMS: Column = Column::number("ITEMS");
const RATE: Column = Column::number("ITEMS/s");
const PEAK: Column = Column::number("PEAK");
const P50: Column = Column::number("P50 ms");
const P99: Column = Column::number("P99 ms");
const EXACT: Column = Column::text("EXACT");

pub const LIMIT: [Told<LimitResult>; 6] = [
    (Column::number("HOPS"), |it| it.hops.to_string()),
    (Column::number("ITEMS/MESSAGE"), |it| {
        it.bodies.items_per_message.to_string()
    }),
    (RATE, |it| whole(it.items_per_second)),
    (OURS, |it| tenths(it.cpu_us_per_item.ours)),
    (BROKER, |it| it.cpu_us_per_item.broker.text()),
    (PEAK, |it| memory_text(it.peak_memory_bytes)),
];

/// Of a job, and whether its counts are exact.
pub const JOB: [Told<(OneJobResult, bool)>; 8] = [
    (Column::text("BROKER"), |(it, _)| it.broker.clone()),
    (ITEMS, |(it, _)| it.items.to_string()),
    (RATE, |(it, _)| whole(it.items_per_second)),
    (OURS, |(it, _)| tenths(it.cpu_us_per_item.ours)),
    (BROKER, |(it, _)| it.cpu_us_per_item.broker.text()),
    (DATABASE, |(it, _)| it.cpu_us_per_item.database.text()),
    (PEAK, |(it, _)| memory_text(it.peak_memory_bytes)),
    (EXACT, |(_, exact)| yes_or_no(*exact)),
];

/// Of jobs, and whether their counts are exact.
pub const JOBS: [Told<(ManyJobsResult, bool)>; 9] = [
    (Column::text("BROKER"), |(it, _)| it.broker.clone()),
    (Column::number("JOBS"), |(it, _)| it.jobs.to_string()),
    (Column::number("SHARDS"), |(it, _)| {
        it.tracking_shards.to_string()
    }),
    (ITEMS, |(it, _)| (it.jobs * it.items_per_job).to_string()),
    (RATE, |(it, _)| whole(it.items_per_second)),
    (OURS, |(it, _)| tenths(it.cpu_us_per_item.ours)),
    (BROKER, |(it, _)| it.cpu_us_per_item.broker.text()),
    (DATABASE, |(it, _)| it.cpu_us_per_item.database.text()),
    (EXACT, |(_, exact)| yes_or_no(*exact)),
];

pub const PART: [Told<PartResult>; 4] = [
    (Column::text("PART"), |it| {
        let name = it.part.to_possible_value();
        name.map_or_else(String::new, |name| name.get_name().to_owned())
    }),
    (Column::number("PROCESSES"), |it| it.processes.to_string()),
    (Column::number("µs"), |it| tenths(it.cpu_us_per_item)),
    (PEAK, |it| memory_text(it.peak_memory_bytes)),
];

pub const STORE: [Told<StoreBenchResult>; 9] = [
    (Column::text("STORE"), |it| it.store.clone()),
    (Column::number("TASKS/FLUSH"), |it| {
        it.tasks_per_flush.to_string()
    }),
    (Column::number("FLUSHES/s"), |it| {
        whole(it.flushes_per_second)
    }),
    (Column::number("TASKS/s"), |it| whole(it.tasks_per_second)),
    (P50, |it| hundredths(it.p50_ms)),
    (P99, |it| hundredths(it.p99_ms)),
    (OURS, |it| tenths(it.our_cpu_us_per_task)),
    (DATABASE, |it| it.database_cpu_us_per_task.text()),
    (EXACT, |it| yes_or_no(it.is_exact)),
];

pub const API: [Told<ApiResult>; 6] = [
    (Column::text("REQUEST"), |it| it.what.clone()),
    (Column::number("OTHER JOBS"), |it| {
        it.stored_jobs.to_string()
    }),
    (Column::number("CLIENTS"), |it| it.clients.to_string()),
    (Column::number("PER s"), |it| whole(it.per_second)),
    (P50, |it| hundredths(it.p50_ms)),
    (P99, |it| hundredths(it.p99_ms)),
];

pub const SHAPE: [Told<ShapeResult>; 9] = [
    (Column::text("SHAPE"), |it| it.shape.to_owned()),
    (Column::number("LIMIT/s"), |it| whole(it.limit)),
    (Column::number("SYSTEM/s"), |it| whole(it.system)),
    (Column::number("RATIO"), |it| hundredths(it.ratio.median)),
    (Column::text("(MIN-MAX)"), |it| {
        format!("{:.2}-{:.2}", it.ratio.min, it.ratio.max)
    }),
    (OURS, |it| tenths(it.cpu_us_per_item.ours)),
    (BROKER, |it| it.cpu_us_per_item.broker.text()),
    (DATABASE, |it| it.cpu_us_per_item.database.text()),
    (EXACT, |it| yes_or_no(it.is_exact)),
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
