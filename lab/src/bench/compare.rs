//! The limit and the system in turn, so that both meet the same machine: what the product costs
//! beside the broker alone.

use anyhow::ensure;
use clap::Args;
use framework::config::Route;
use serde::Serialize;

use super::limit::{Bodies, Chain, PREFETCH, run as run_limit};
use super::one_job::run as run_one_job;
use super::system::JobOptions;
use super::usage::CpuPerItem;
use batchwright_cli::remark;

/// A way of items through the system, and the chain that publishes each item as often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Items that send no output: 1 hop.
    Direct,
    /// Items that send an output: 2 hops.
    DirectOutput,
    /// Items and outputs that pass through the tracking worker: 4 hops.
    RerouteOutput,
}

/// The settings of a comparison.
#[derive(Debug, Args)]
pub struct CompareOptions {
    /// How often the limit and the system are measured for each shape.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The shapes; by default all, but `reroute-output` only with `--broker`.
    #[arg(long, value_delimiter = ',')]
    shapes: Vec<Shape>,
    #[command(flatten)]
    job: JobOptions,
}

/// The results for a shape: medians, and the ratios of the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShapeResult {
    pub shape: &'static str,
    /// Items per second.
    pub limit: f64,
    /// The items in a message of the chain.
    pub limit_items_per_message: u64,
    pub system: f64,
    pub ratio: Spread,
    /// Of the round with the median of the system.
    pub cpu_us_per_item: CpuPerItem,
    pub limit_cpu_us_per_item: CpuPerItem,
    /// Whether every job counted every item.
    pub is_exact: bool,
    pub rounds: u32,
    pub peak_memory_bytes: u64,
    pub broker: String,
    pub store: String,
}

/// The least, the middle and the largest of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Shape {
    const ALL: [Self; 3] = [Self::Direct, Self::DirectOutput, Self::RerouteOutput];

    const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DirectOutput => "direct-output",
            Self::RerouteOutput => "reroute-output",
        }
    }

    const fn hops(self) -> u32 {
        match self {
            Self::Direct => 1,
            Self::DirectOutput => 2,
            Self::RerouteOutput => 4,
        }
    }

    /// Returns the largest number of items in a message. What passes through the tracking worker
    /// goes one by one.
    fn bundle(self, options: &JobOptions) -> u64 {
        match self {
            Self::RerouteOutput => 1,
            Self::Direct | Self::DirectOutput => options.load.bundle.into(),
        }
    }

    /// Returns the settings of the system for this shape.
    fn job(self, options: &JobOptions) -> JobOptions {
        let mut job = options.clone();
        job.with_output = self != Self::Direct;
        job.load.route = match self {
            Self::RerouteOutput => Route::Reroute,
            Self::Direct | Self::DirectOutput => Route::Direct,
        };
        job
    }
}

/// Compares one shape after the other. `each` gets the results of a shape as soon as they are
/// there.
pub async fn run(
    options: &CompareOptions,
    mut each: impl FnMut(ShapeResult) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    ensure!(
        options.job.load.route == Route::Direct,
        "the shapes say how items travel; pass --shapes reroute-output instead of --route reroute"
    );
    let shapes = match &options.shapes[..] {
        [] if options.job.place.servers.broker.is_some() => &Shape::ALL[..],
        [] => &Shape::ALL[..2],
        some => some,
    };
    for shape in shapes {
        each(compare(options, *shape).await?)?;
    }
    Ok(())
}

async fn compare(options: &CompareOptions, shape: Shape) -> anyhow::Result<ShapeResult> {
    let job = shape.job(&options.job);
    let prefetch = job.load.prefetch.map(u16::try_from).transpose()?;
    let chain = Chain {
        name: job.load.name.clone(),
        items: job.load.items,
        hops: shape.hops(),
        bodies: Bodies::of_system(job.tasks.payload, job.with_output, shape.bundle(&job)),
        prefetch: prefetch.unwrap_or(PREFETCH),
        broker: job.place.servers.broker.clone(),
        data: job.place.data.clone(),
    };
    let (mut limits, mut systems) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        let limit = run_limit(&chain).await?;
        let system = run_one_job(&job).await?;
        remark!(
            "{} {round}/{}: limit {:.0}/s, system {:.0}/s",
            shape.name(),
            options.rounds,
            limit.items_per_second,
            system.run.items_per_second
        );
        limits.push(limit);
        systems.push(system);
    }
    let is_exact = systems.iter().all(|it| it.is_exact(job.with_output));
    let ratios = systems.iter().zip(&limits);
    let ratios = ratios.map(|(system, limit)| system.run.items_per_second / limit.items_per_second);
    let ratio = Spread::of(ratios.collect());
    limits.sort_by(|a, b| a.items_per_second.total_cmp(&b.items_per_second));
    systems.sort_by(|a, b| a.run.items_per_second.total_cmp(&b.run.items_per_second));
    let (limit, system) = (&limits[limits.len() / 2], &systems[systems.len() / 2]);
    Ok(ShapeResult {
        shape: shape.name(),
        limit: limit.items_per_second,
        limit_items_per_message: limit.bodies.items_per_message,
        system: system.run.items_per_second,
        ratio,
        cpu_us_per_item: system.run.cpu_us_per_item,
        limit_cpu_us_per_item: limit.cpu_us_per_item,
        is_exact,
        rounds: options.rounds,
        peak_memory_bytes: system.run.peak_memory_bytes,
        broker: system.run.broker.clone(),
        store: system.run.store.clone(),
    })
}

impl Spread {
    /// Returns the spread of at least one value.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            min: values[0],
            median: values[values.len() / 2],
            max: values[values.len() - 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_the_least_the_middle_and_the_largest() {
        let spread = |values: &[f64]| Spread::of(values.to_vec());
        let of = |min, median, max| Spread { min, median, max };
        assert_eq!(spread(&[3.0, 1.0, 2.0]), of(1.0, 2.0, 3.0));
        assert_eq!(spread(&[0.5]), of(0.5, 0.5, 0.5));
    }
}
