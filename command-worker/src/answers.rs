//! Answers whether the items of a batch would run, before there is a job.

use std::collections::BTreeMap;

use contract::{BatchAnswer, BatchQuery, BatchRefusal, Question};
use framework::queries::{Answerer, Answering, Asked};
use serde::Deserialize;

use crate::{ARGV_PARAM, COMMAND_PARAM, CommandWorker};

/// What matters of a batch.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Batch {
    #[serde(default)]
    task_message_params: Option<BTreeMap<String, String>>,
}

impl Answerer for CommandWorker {
    fn answer<'a>(&'a self, question: &'a [u8], _: Asked<'a>) -> Answering<'a> {
        let answer = self.refusal(question);
        Box::pin(async move { serde_json::to_vec(&answer?).ok() })
    }
}

impl CommandWorker {
    /// Refuses items whose command does not run here. What says nothing of a command may name it in
    /// each item.
    fn refusal(&self, question: &[u8]) -> Option<BatchAnswer> {
        let query: BatchQuery = serde_json::from_slice(question).ok()?;
        if query.question != Question::CheckItems {
            return None;
        }
        let batch: Batch = serde_json::from_str(query.task.get()).ok()?;
        let params = batch.task_message_params.unwrap_or_default();
        let refused = match (params.get(ARGV_PARAM), params.get(COMMAND_PARAM)) {
            (Some(argv), _) => self.commands.of_job(argv).err(),
            (None, Some(name)) => self.commands.named(Some(name)).err(),
            (None, None) => None,
        };
        Some(BatchAnswer {
            refusal: refused.map(|error| BatchRefusal {
                message: error.to_string(),
                missing: false,
            }),
            ..BatchAnswer::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Commands, Files, Keeper};

    #[test]
    fn command_that_does_not_run_here_is_refused_with_the_reason() {
        let worker = |commands: Commands| {
            let keeper = Keeper::new("/bin/false");
            CommandWorker::new(commands, keeper, Files::below("."))
        };
        let own = worker(Commands::parse("wc: [wc, \"{item}\"]", |_| None).unwrap());
        let any = worker(Commands::default().allow_any(None));
        let ask = |worker: &CommandWorker, question: &str, params: serde_json::Value| {
            let query = json!({"question": question, "task": {"taskMessageParams": params}});
            worker.refusal(query.to_string().as_bytes())
        };
        for (worker, params, refused) in [
            (&own, json!({"command": "wc"}), ""),
            (&own, json!({"other": "x"}), ""),
            (&own, json!(null), ""),
            (&any, json!({"argv": "[\"wc\",\"{item}\"]"}), ""),
            (&own, json!({"argv": "[\"wc\"]"}), "--allow-any-command"),
            (
                &own,
                json!({"command": "ls"}),
                "there is no command \"ls\"; this worker has wc",
            ),
            (&any, json!({"argv": "wc"}), "is not a JSON array of texts"),
        ] {
            let answer = ask(worker, "checkItems", params.clone()).unwrap();
            let refusal = answer.refusal.unwrap_or_default();
            assert!(refusal.message.contains(refused), "{params}: {refusal:?}");
            assert_eq!(refusal.message.is_empty(), refused.is_empty(), "{params}");
        }
        assert_eq!(ask(&own, "check", json!({})), None);
    }
}
