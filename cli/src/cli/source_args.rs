//! The flags of `up` and `run` that say what batches may read beside files below the root folder.

use std::path::PathBuf;

use anyhow::bail;
use batchwright::batch::{BatchWorker, SourceLimits, Sources, Store};
use blobs::{BucketOptions, Location};
use clap::Args;
use framework::http::confined::{AllowedOrigins, Origin};
use framework::tls::Tls;

/// The flags that refusals name.
const ORIGIN: &str = "--source-origin";
const PRIVATE: &str = "--source-private-origin";

#[derive(Debug, Args)]
#[command(next_help_heading = "Batch worker")]
#[expect(clippy::struct_field_names, reason = "fields name flags")]
pub struct SourceArgs {
    /// Origin of URLs that `records` batches may read, e.g. `https://data.example.com`, at
    /// addresses of the public internet; repeat the flag, or separate origins with commas. Without
    /// origins no URL is read.
    #[arg(long, value_delimiter = ',', value_name = "ORIGIN")]
    source_origin: Vec<Origin>,
    /// The same, at any address: also in a private network, on the link, or on this machine.
    #[arg(long, value_delimiter = ',', value_name = "ORIGIN")]
    source_private_origin: Vec<Origin>,
    /// Place whose files `records` batches may read as `store://NAME/PATH`: a folder,
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; repeat the flag, or
    /// separate places with commas.
    #[arg(long, value_delimiter = ',', value_parser = named_location, value_name = "NAME=PLACE")]
    source_store: Vec<(String, Location)>,
    /// Folder for copies of compressed files, and of files whose server gives no parts of them,
    /// while they are read; by default that of the system for temporary files.
    #[arg(long, value_name = "FOLDER")]
    source_copies: Option<PathBuf>,
    /// MiB of these copies; a file of which more would have to be copied is refused.
    #[arg(long, default_value_t = Sources::DEFAULT_COPIES >> 20, value_parser = clap::value_parser!(u64).range(1..1 << 40), value_name = "MEGABYTES")]
    source_copies_size: u64,
    /// Number of splits that read files, folders, URLs or stores at the same time, from 1 to 16;
    /// further ones are put off, and others never wait for them.
    #[arg(long, default_value_t = BatchWorker::DEFAULT_READERS as u64, value_parser = clap::value_parser!(u64).range(1..=16), value_name = "SPLITS")]
    source_readers: u64,
    /// Bytes a second that the server of a URL or an upload sends at least, on average over a
    /// minute of waiting for it; a source that is slower fails its split. With 0, none is too slow.
    #[arg(long, default_value_t = SourceLimits::default().least_speed, value_name = "BYTES")]
    source_least_speed: u64,
    /// How often a response of a URL may break off and be asked for again, each time from there;
    /// then its split fails.
    #[arg(long, default_value_t = SourceLimits::default().most_breaks, value_name = "BREAKS")]
    source_breaks: u32,
}

impl SourceArgs {
    /// Returns how many splits may read at the same time, and what is asked of servers.
    pub fn readers(&self) -> anyhow::Result<(usize, SourceLimits)> {
        let limits = SourceLimits {
            least_speed: self.source_least_speed,
            most_breaks: self.source_breaks,
            ..SourceLimits::default()
        };
        Ok((usize::try_from(self.source_readers)?, limits))
    }

    /// Returns what batches may read.
    pub fn sources(self, buckets: &BucketOptions, tls: &Tls) -> anyhow::Result<Sources> {
        let folder = self.source_copies.unwrap_or_else(std::env::temp_dir);
        let mut sources = Sources::default().copies(folder, self.source_copies_size << 20);
        if !(self.source_origin.is_empty() && self.source_private_origin.is_empty()) {
            let allowed = AllowedOrigins {
                public: self.source_origin,
                private: self.source_private_origin,
                who: "a batch",
                setting: ORIGIN,
                private_setting: PRIVATE,
            };
            sources = sources.urls(allowed, tls);
        }
        let mut names = Vec::new();
        for (name, location) in self.source_store {
            if names.contains(&name) {
                bail!("--source-store names {name:?} twice");
            }
            sources = sources.store(name.clone(), Store::at(&location, buckets)?);
            names.push(name);
        }
        Ok(sources)
    }
}

/// Parses a name and the place that it stands for.
pub fn named_location(text: &str) -> Result<(String, Location), String> {
    let Some((name, location)) = text.split_once('=') else {
        return Err(format!(
            "{text:?} is not NAME=PLACE, e.g. archive=/var/archive"
        ));
    };
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let name = name.trim();
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_allowed) {
        return Err(format!(
            "{name:?} is not a name: 1 to 64 letters, digits, - and _"
        ));
    }
    Ok((name.to_owned(), location.trim().parse()?))
}
