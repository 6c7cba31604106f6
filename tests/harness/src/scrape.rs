//! What a process shows at `/metrics`, read from Prometheus' text format.

use std::collections::{BTreeMap, BTreeSet};

/// The metrics of one process at one moment.
#[derive(Debug, Clone, Default)]
pub struct Scrape {
    families: BTreeMap<String, Family>,
    samples: Vec<Sample>,
}

/// What a process says about one metric.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Family {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// The help text.
    pub help: String,
    /// The names of the labels of its samples, but for those of the buckets.
    pub labels: BTreeSet<String>,
}

#[derive(Debug, Clone)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Family {
    /// Returns what a process says about a metric of this type, with this help text and these
    /// labels.
    pub fn new(kind: &str, help: &str, labels: &[&str]) -> Self {
        Self {
            kind: kind.to_owned(),
            help: help.to_owned(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        }
    }
}

impl Scrape {
    /// Reads the body of a response.
    ///
    /// # Panics
    /// If a line is none of the format, or belongs to no metric that was announced before.
    pub fn read(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let read = if let Some(said) = line.strip_prefix("# ") {
                scrape.read_comment(said)
            } else {
                scrape.read_sample(line)
            };
            assert!(read.is_some(), "not a line of a scrape: {line}");
        }
        for (name, family) in &scrape.families {
            let filled = !family.kind.is_empty() && !family.help.is_empty();
            assert!(filled, "{name} has no type or no help: {family:?}");
        }
        scrape
    }

    /// Returns all metrics by name.
    pub const fn families(&self) -> &BTreeMap<String, Family> {
        &self.families
    }

    /// Returns the value of the sample with this name and exactly these labels.
    ///
    /// # Panics
    /// If there is no such sample; the message shows those of the same name.
    #[track_caller]
    #[expect(clippy::panic, reason = "this is how a test fails")]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has_labels = |sample: &Sample| {
            sample.labels.len() == labels.len()
                && labels.iter().all(|(name, value)| {
                    sample.labels.get(*name).is_some_and(|label| label == value)
                })
        };
        let named = || self.samples.iter().filter(|sample| sample.name == name);
        named()
            .find(|sample| has_labels(sample))
            .unwrap_or_else(|| panic!("no {name}{labels:?} in {:#?}", named().collect::<Vec<_>>()))
            .value
    }

    fn read_comment(&mut self, said: &str) -> Option<()> {
        let (what, rest) = said.split_once(' ')?;
        let (name, text) = rest.split_once(' ')?;
        let family = self.families.entry(name.to_owned()).or_default();
        match what {
            "TYPE" => text.clone_into(&mut family.kind),
            "HELP" => text.clone_into(&mut family.help),
            _ => return None,
        }
        Some(())
    }

    fn read_sample(&mut self, line: &str) -> Option<()> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let mut labels = labels.strip_suffix('}')?;
        let mut sample = Sample {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            value: value.parse().ok()?,
        };
        while let Some((label, rest)) = labels.split_once("=\"") {
            let (value, rest) = rest.split_once('"')?;
            sample.labels.insert(label.to_owned(), value.to_owned());
            labels = rest.trim_start_matches(',');
        }
        let family = ["", "_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| {
                let base = name.strip_suffix(suffix)?;
                self.families.contains_key(base).then_some(base.to_owned())
            })?;
        let family = self.families.get_mut(&family)?;
        let labels = sample.labels.keys().filter(|label| *label != "le");
        family.labels.extend(labels.cloned());
        self.samples.push(sample);
        Some(())
    }
}
