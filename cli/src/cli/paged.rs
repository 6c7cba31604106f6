//! Prints lists that come page by page, while the pages arrive; as one JSON array, when all have.

use serde::Serialize;

use super::connect::Output;
use crate::print::{self, say};
use crate::text::Column;

/// Something of which there are lists.
pub trait Listed: Serialize {
    /// The columns of a table.
    const COLUMNS: &[Column];
    /// The columns of a wide table.
    const WIDE_COLUMNS: &[Column];

    /// Returns by what it is named.
    fn name(&self) -> String;

    /// Returns the cells of a table, or of a wide one.
    fn row(&self, is_wide: bool) -> Vec<String>;
}

/// Prints all pages. `page` returns the one behind the place that it is given, and the place behind
/// that one.
pub async fn print_pages<T: Listed>(
    output: Output,
    mut page: impl AsyncFnMut(Option<String>) -> anyhow::Result<(Vec<T>, Option<String>)>,
) -> anyhow::Result<()> {
    let (mut after, mut array) = (None, Vec::new());
    loop {
        let (listed, next) = page(after).await?;
        let row = |is_wide| {
            listed
                .iter()
                .map(|one| one.row(is_wide))
                .collect::<Vec<_>>()
        };
        match output {
            _ if listed.is_empty() => {}
            Output::Table => print::table(T::COLUMNS, &row(false), print::width_of_output())?,
            Output::Wide => print::table(T::WIDE_COLUMNS, &row(true), None)?,
            Output::Name => {
                for one in &listed {
                    say!("{}", one.name());
                }
            }
            Output::Ndjson => {
                for one in &listed {
                    say!("{}", serde_json::to_string(one)?);
                }
            }
            Output::Json => array.extend(listed),
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    if output == Output::Json {
        say!("{}", serde_json::to_string(&array)?);
    }
    Ok(())
}
