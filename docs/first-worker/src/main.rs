use std::error::Error;

use batchwright::{
    Context, OrFail, Outputs, Reply, Settings, Stack, StackOptions, TaskData, TaskError, Worker,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Amount {
    value: String,
}

impl TaskData for Amount {
    const CLASSIFIER: &'static str = "ListItem";
    const API_VERSION: i32 = 1;
    fn label(&self) -> Option<String> {
        Some(self.value.clone())
    }
}

struct Doubler;

impl Worker for Doubler {
    type Input = Amount;
    type Output = Amount;

    async fn run(&self, amount: Amount, _: Context) -> Result<Reply<Amount>, TaskError> {
        let number: u64 = amount.value.parse().or_fail()?;
        let value = (2 * number).to_string();
        Ok(Reply::send(Amount { value }))
    }
}

/// Prints each result until the system stops.
async fn print(mut doubled: Outputs<Amount>) -> Result<(), Box<dyn Error>> {
    while let Some(output) = doubled.next().await? {
        match &output.result {
            Ok(amount) => println!("{} doubled is {}", output.name(), amount.value),
            Err(failure) => println!("{} cannot be doubled: {failure}", output.name()),
        }
        output.done();
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut settings = Settings::new("doubler");
    settings.output = Some("doubled".into());
    let stack = Stack::new(StackOptions::embedded("data")).worker(settings, Doubler);
    let running = stack.start().await?;
    println!("the API is at {}", running.api_url());
    let doubled = Outputs::of(running.broker(), "doubled").await?;
    let (stopped, printed) = tokio::join!(running.until_asked_to_stop(), print(doubled));
    stopped?;
    printed
}

#[cfg(test)]
mod tests {
    use batchwright::batch_job;

    use super::*;

    #[tokio::test]
    async fn doubles_a_number_and_fails_anything_else() {
        let run = batchwright::testing::run(&Doubler, Amount { value: "21".into() }).await;
        assert_eq!(run.sent().unwrap().value, "42");
        let many = Amount {
            value: "many".into(),
        };
        let run = batchwright::testing::run(&Doubler, many).await;
        assert!(run.failure().unwrap().contains("invalid digit"));
    }

    #[tokio::test]
    async fn doubles_every_number_of_a_batch() {
        let folder = tempfile::tempdir().unwrap();
        let options = StackOptions::embedded(folder.path());
        let stack = Stack::new(options).worker(Settings::new("doubler"), Doubler);
        let batch = batch_job("list", r#"["21", "4"]"#, "doubler-in", Some("doubled"));
        let drained = stack.drain::<Amount>(&batch).await.unwrap();
        assert_eq!(drained.job.items.done, 2);
        let doubled = drained.outputs.iter().map(|output| output.result.as_ref());
        let values: Vec<_> = doubled.map(|amount| &amount.unwrap().value).collect();
        assert_eq!(values, ["42", "8"]);
    }
}
