//! Prints lists and what is in them: a list that comes page by page while the pages arrive; as one
//! JSON array, when all have.

use serde::Serialize;

use super::connect::Output;
use crate::print::{self, say};
use crate::text::{Field, escaped, fields, fields_of};

/// The number of things that one request asks for.
const PAGE: u32 = 1000;

/// Something of which there are lists.
pub trait Listed: Serialize + Sized + 'static {
    const COLUMNS: &[Field<Self>];

    /// Returns by what it is named.
    fn name(&self) -> String;
}

/// Prints a list that is there.
pub fn print_all<T: Listed>(output: Output, listed: &[T]) -> anyhow::Result<()> {
    match output {
        Output::Json => say!("{}", serde_json::to_string(listed)?),
        Output::Table | Output::Wide => {
            print::table(T::COLUMNS, listed, output == Output::Wide)?;
        }
        Output::Ndjson | Output::Name => {
            for one in listed {
                print_one(output, one, &[])?;
            }
        }
    }
    Ok(())
}

/// Prints one thing: for a person, a line for each column of a wide table, then the further ones.
pub fn print_one<T: Listed>(
    output: Output,
    one: &T,
    further: &[(&'static str, String)],
) -> anyhow::Result<()> {
    match output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(one)?),
        Output::Name => say!("{}", escaped(&one.name())),
        Output::Table | Output::Wide => {
            let mut known = fields_of(T::COLUMNS, one, print::now());
            known.extend_from_slice(further);
            print::lines(&fields(&known))?;
        }
    }
    Ok(())
}

/// Prints all pages, up to a limit. `page` gets the place behind which the page begins and how many
/// things it may have at the most, and returns them and the place behind them.
pub async fn print_pages<T: Listed>(
    output: Output,
    limit: Option<u32>,
    mut page: impl AsyncFnMut(Option<String>, u32) -> anyhow::Result<(Vec<T>, Option<String>)>,
) -> anyhow::Result<()> {
    let (mut after, mut array, mut left) = (None, Vec::new(), limit.unwrap_or(u32::MAX));
    loop {
        let (listed, next) = page(after, left.min(PAGE)).await?;
        left = left.saturating_sub(u32::try_from(listed.len())?);
        after = next.filter(|_| left > 0);
        match output {
            Output::Json => array.extend(listed),
            _ if listed.is_empty() => {}
            _ => print_all(output, &listed)?,
        }
        if after.is_none() {
            break;
        }
    }
    if output == Output::Json {
        print_all(output, &array)?;
    }
    Ok(())
}

/// Returns the query of a page.
pub fn page_query(
    given: &[(&'static str, String)],
    after: Option<String>,
    limit: u32,
) -> Vec<(&'static str, String)> {
    let limit = ("limit", limit.to_string());
    let after = after.map(|after| ("after", after));
    given.iter().cloned().chain([limit]).chain(after).collect()
}

/// Does something to each of several things, and says for which ones it failed. Returns for how
/// many it did not.
pub async fn each<T>(
    things: &[T],
    output: Output,
    mut change: impl AsyncFnMut(&T) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let mut changed = 0;
    for thing in things {
        match change(thing).await {
            Ok(()) => changed += 1,
            Err(error) if error.is::<print::Unwritten>() => return Err(error),
            Err(error) => print::failure(&error, output.is_json()),
        }
    }
    Ok(changed)
}
