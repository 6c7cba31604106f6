//! `batchwright history`: lists the changes of the status of a job.

use std::process::ExitCode;

use contract::rest::StatusChange;

use super::jobs::JobArgs;
use super::paged::{Listed, print_pages};
use crate::columns;
use crate::print::remark;
use crate::text::{Field, age, date, or_empty};

impl Listed for StatusChange {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        number("AGE").narrow() => age(now - it.time);
        text("WHEN").wide() => date(it.time);
        number("ROUND") => it.round.to_string();
        text("STATUS") => status(it);
        text("BY") => it.actor.clone();
        text("WHY").cut_to(20) => it.reason.clone();
        text("REQUEST").wide() => or_empty(it.correlation_id.as_deref());
    });

    fn name(&self) -> String {
        self.to.to_string()
    }
}

pub async fn history(args: JobArgs) -> anyhow::Result<ExitCode> {
    let JobArgs { job, service } = args;
    let (client, mut left_out) = (service.client()?, 0);
    print_pages(service.output, None, async |after, _| {
        let page = client.history(&job, after.as_deref()).await?;
        left_out += page.left_out;
        Ok((page.history, page.next))
    })
    .await?;
    if left_out > 0 {
        remark!("batchwright: {left_out} changes in between are not kept");
    }
    Ok(ExitCode::SUCCESS)
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
        assert_eq!(
            table(StatusChange::COLUMNS, &changes, Some(80), 1_795_368_003_000),
            [
                "AGE  ROUND  STATUS           BY        WHY",
                " 3m      1  Waiting          client    created",
                " 2s      2  Active → Failed  tracking  task 3.17 has failed: RESULT_EXCEPTION: …",
            ]
        );
        let wide = table(StatusChange::COLUMNS, &changes, None, 0);
        assert!(wide[1].ends_with("  c-1"), "{wide:?}");
    }
}
