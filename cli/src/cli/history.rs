//! `batchwright history`: lists the changes of the status of a job.

use std::process::ExitCode;

use contract::rest::StatusChange;

use super::connect::Output;
use super::jobs::JobArgs;
use crate::print::{self, remark, say};
use crate::text::{Column, MISSING, age, date, escaped};

const COLUMNS: [Column; 5] = [
    Column::number("AGE"),
    Column::number("ROUND"),
    Column::text("STATUS"),
    Column::text("BY"),
    Column::cut_to("WHY", 20),
];

const WIDE_COLUMNS: [Column; 6] = [
    Column::text("WHEN"),
    Column::number("ROUND"),
    Column::text("STATUS"),
    Column::text("BY"),
    Column::text("WHY"),
    Column::text("REQUEST"),
];

/// Prints the changes while the pages arrive; as one JSON array, when all have.
pub async fn history(args: JobArgs) -> anyhow::Result<ExitCode> {
    let JobArgs { job, service } = args;
    let (client, output, now) = (service.client()?, service.output, print::now());
    let (mut after, mut is_all, mut left_out) = (None, false, 0);
    let (mut array, mut rows) = (Vec::new(), Vec::new());
    while !is_all {
        let page = client.history(&job, after.as_deref()).await?;
        (after, is_all) = (page.next.clone(), page.next.is_none());
        left_out += page.left_out;
        for change in page.history {
            match output {
                Output::Table => rows.push(row(&change, now)),
                Output::Wide => rows.push(wide_row(&change)),
                Output::Ndjson => say!("{}", serde_json::to_string(&change)?),
                Output::Name => say!("{}", change.to),
                Output::Json => array.push(change),
            }
        }
    }
    match output {
        Output::Json => say!("{}", serde_json::to_string(&array)?),
        Output::Table => print::table(&COLUMNS, &rows, print::width_of_output())?,
        Output::Wide => print::table(&WIDE_COLUMNS, &rows, None)?,
        Output::Ndjson | Output::Name => {}
    }
    if left_out > 0 {
        remark!("batchwright: {left_out} changes in between are not kept");
    }
    Ok(ExitCode::SUCCESS)
}

fn row(change: &StatusChange, now: i64) -> Vec<String> {
    vec![
        age(now - change.time),
        change.round.to_string(),
        status(change),
        escaped(&change.actor).into_owned(),
        escaped(&change.reason).into_owned(),
    ]
}

fn wide_row(change: &StatusChange) -> Vec<String> {
    let request = change.correlation_id.as_deref();
    vec![
        date(change.time),
        change.round.to_string(),
        status(change),
        escaped(&change.actor).into_owned(),
        escaped(&change.reason).into_owned(),
        request.map_or_else(|| MISSING.to_owned(), |id| escaped(id).into_owned()),
    ]
}

fn status(change: &StatusChange) -> String {
    match change.from {
        Some(from) => format!("{from} → {}", change.to),
        None => change.to.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::table;

    #[test]
    fn changes_are_shown_within_eighty_columns() {
        let changes: Vec<StatusChange> = serde_json::from_value(json!([
            {"time": 1_795_367_823_000_i64, "from": null, "to": "Waiting", "actor": "client", "reason": "created", "round": 1, "correlationId": "c-1"},
            {"time": 1_795_368_001_000_i64, "from": "Active", "to": "Failed", "actor": "tracking",
                "reason": "task 3.17 has failed: RESULT_EXCEPTION: the page\nis torn", "round": 2},
        ]))
        .unwrap();
        let rows: Vec<_> = changes
            .iter()
            .map(|it| row(it, 1_795_368_003_000))
            .collect();
        assert_eq!(
            table(&COLUMNS, &rows, Some(80)),
            [
                "AGE  ROUND  STATUS           BY        WHY",
                " 3m      1  Waiting          client    created",
                " 2s      2  Active → Failed  tracking  task 3.17 has failed: RESULT_EXCEPTION: …",
            ]
        );
        assert!(wide_row(&changes[0]).ends_with(&["created".to_owned(), "c-1".to_owned()]));
    }
}
