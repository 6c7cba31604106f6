//! `batchwright explain`: says what the batch of a job would be split into.

use std::process::ExitCode;

use contract::{ExplainedItem, Explanation};

use super::connect::Output;
use super::jobs::exit_code_of;
use super::submit::SubmitArgs;
use crate::print::{self, remark, say};
use crate::text::{cut, escaped};

/// The widest label of an item.
const LABEL: usize = 60;

pub async fn explain(args: SubmitArgs) -> anyhow::Result<ExitCode> {
    let (new_job, _) = args.request(None).await?;
    let explanation = args.service.client()?.explain(&new_job).await?;
    match args.service.output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(&explanation)?),
        Output::Name => say!("{}", explanation.items),
        Output::Table | Output::Wide => {
            print::lines(&lines(&explanation))?;
            for note in &explanation.notes {
                remark!("batchwright: {}", escaped(note));
            }
        }
    }
    Ok(exit_code_of(explanation.refusal.is_none()))
}

/// Returns the lines for a person.
fn lines(explained: &Explanation) -> Vec<String> {
    let Explanation {
        exact,
        items,
        splits,
        messages,
        bytes,
        levels,
        ..
    } = explained;
    let at_least = if *exact { "" } else { "at least " };
    let pipe = explained.target_pipe.as_deref().unwrap_or_default();
    let mut lines = vec![
        format!(
            "items     {at_least}{} for the pipe {}",
            number(*items),
            escaped(pipe)
        ),
        format!("splits    {at_least}{} on {levels} levels", number(*splits)),
        format!(
            "messages  {at_least}{}, {} bytes of task data",
            number(*messages),
            number(*bytes)
        ),
    ];
    if let Some(part) = explained.looked_at {
        let percent = format!("{:.1} %", part * 100.0);
        let about = explained.estimated_items.map(number);
        let about = about.map_or_else(String::new, |items| {
            format!(", so about {items} items in all")
        });
        lines.push(format!("looked at {percent} of the batch{about}"));
    }
    if let Some(refusal) = &explained.refusal {
        lines.push(format!("refused   {}", escaped(refusal)));
    }
    if let Some(problem) = &explained.problem {
        lines.push(format!(
            "problem   a sub-batch would fail: {}",
            escaped(problem)
        ));
    }
    let shown = |title: &str, items: &[ExplainedItem]| -> Vec<String> {
        let titles = std::iter::once(title).chain(std::iter::repeat(""));
        let line = |(title, item): (&str, &ExplainedItem)| {
            format!("{title:<9} {}", cut(&escaped(&item.label), LABEL))
        };
        titles.zip(items).map(line).collect()
    };
    lines.extend(shown("first", &explained.first));
    lines.extend(shown("last", &explained.last));
    lines
}

/// Returns a number with separators.
fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_looked_at_is_told() {
        let item = |label: &str| ExplainedItem {
            label: label.to_owned(),
            ..ExplainedItem::default()
        };
        let explained = Explanation {
            items: 1_234_567,
            splits: 12,
            messages: 1_234_578,
            bytes: 999,
            levels: 2,
            looked_at: Some(0.1234),
            estimated_items: Some(10_004_594),
            problem: Some("the folder \"a\" has changed".to_owned()),
            refusal: Some("the range has too many items".to_owned()),
            first: vec![item("a\u{1b}b"), item("2")],
            last: vec![item("z")],
            target_pipe: Some("items-in".to_owned()),
            ..Explanation::default()
        };
        assert_eq!(
            lines(&explained),
            [
                "items     at least 1,234,567 for the pipe items-in",
                "splits    at least 12 on 2 levels",
                "messages  at least 1,234,578, 999 bytes of task data",
                "looked at 12.3 % of the batch, so about 10,004,594 items in all",
                "refused   the range has too many items",
                "problem   a sub-batch would fail: the folder \"a\" has changed",
                "first     a\\u{1b}b",
                "          2",
                "last      z",
            ]
        );
        let exact = Explanation {
            exact: true,
            looked_at: None,
            ..explained
        };
        assert_eq!(
            lines(&exact)[0],
            "items     1,234,567 for the pipe items-in"
        );
    }
}
