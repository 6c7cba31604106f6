//! The Rust of the documentation, so that it compiles. `tests/book` looks for every example here,
//! or in `docs/first-plugin` and `docs/first-worker`.

#![expect(dead_code, reason = "a reader runs them")]

mod define_a_task {
    use batchwright::TaskData;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Resize {
        image: String,
        width: u32,
    }

    impl TaskData for Resize {
        const CLASSIFIER: &'static str = "Resize"; // the name of the type in messages
        const API_VERSION: i32 = 1; // newer versions are refused
    }
}

mod label_a_task {
    use batchwright::{
        Context, OrFail, Outputs, Reply, Running, Runtime, TaskData, TaskError, Worker,
        advanced::RuntimeError,
    };
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Resize {
        image: String,
        width: u32,
    }

    impl TaskData for Resize {
        const CLASSIFIER: &'static str = "Resize";
        const API_VERSION: i32 = 1;
        fn label(&self) -> Option<String> {
            Some(format!("{} to {} pixels", self.image, self.width))
        }
    }

    #[derive(Serialize, Deserialize)]
    struct Resized {
        image: String,
    }

    impl TaskData for Resized {
        const CLASSIFIER: &'static str = "Resized";
        const API_VERSION: i32 = 1;
    }

    struct Resizer;

    impl Worker for Resizer {
        type Input = Resize;
        type Output = Resized;

        async fn run(&self, task: Resize, ctx: Context) -> Result<Reply<Resized>, TaskError> {
            let image = tokio::fs::read(&task.image).await?; // an I/O error: the task runs again
            let small = shrink(&image, task.width).or_fail()?; // not an image: the task fails
            ctx.check_cancelled()?; // the job has ended: nothing is sent
            let image = format!("{}-{}", task.image, task.width);
            tokio::fs::write(&image, small).await?;
            Ok(Reply::send(Resized { image }))
        }
    }

    fn shrink(image: &[u8], width: u32) -> Result<Vec<u8>, std::num::TryFromIntError> {
        Ok(image[..usize::try_from(width)?].to_vec())
    }

    #[tokio::main]
    async fn main() -> Result<(), RuntimeError> {
        Runtime::from_env()?.worker(Resizer).run().await
    }

    async fn read(running: Running) -> Result<(), Box<dyn std::error::Error>> {
        let mut outputs = Outputs::<Resized>::of(running.broker(), "resized").await?;
        while let Some(output) = outputs.next().await? {
            match &output.result {
                Ok(resized) => println!("{} is {}", output.name(), resized.image),
                Err(failure) => eprintln!("{} has failed: {failure}", output.name()),
            }
            output.done();
        }
        Ok(())
    }
}

mod cancel {
    use batchwright::{Context, TaskError};

    struct Task {
        url: String,
    }

    async fn run(task: Task, ctx: Context) -> Result<String, TaskError> {
        let page = tokio::select! {
            page = download(&task.url) => page?,
            error = ctx.cancelled() => return Err(error),
        };
        Ok(page)
    }

    async fn download(url: &str) -> std::io::Result<String> {
        tokio::fs::read_to_string(url).await
    }
}

mod once {
    use batchwright::{Context, TaskError};
    use serde::{Deserialize, Serialize};

    struct Order {
        card: String,
    }

    #[derive(Serialize, Deserialize)]
    struct Receipt {
        number: u64,
    }

    async fn run(order: Order, ctx: Context) -> Result<(), TaskError> {
        let receipt = ctx
            .once("charge", async { Ok(charge(&order).await?) })
            .await?;
        send_mail(&order, &receipt).await?; // if this fails, the next attempt has the same receipt
        Ok(())
    }

    async fn charge(order: &Order) -> std::io::Result<Receipt> {
        let number = tokio::fs::metadata(&order.card).await?.len();
        Ok(Receipt { number })
    }

    async fn send_mail(order: &Order, receipt: &Receipt) -> std::io::Result<()> {
        tokio::fs::write(&order.card, receipt.number.to_string()).await
    }
}

#[path = "../../docs/first-plugin/src/main.rs"]
mod first_plugin;

mod readme {
    use batchwright::{Context, NoOutput, OrFail, Reply, TaskData, TaskError, Worker};
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Greet {
        card: String,
    }

    impl TaskData for Greet {
        const CLASSIFIER: &'static str = "Greet";
        const API_VERSION: i32 = 1;
    }

    struct Greeter;

    impl Worker for Greeter {
        type Input = Greet;
        type Output = NoOutput;

        async fn run(&self, task: Greet, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
            let card = tokio::fs::read_to_string(&task.card).await?; // an I/O error: the task is retried
            let name: String = serde_json::from_str(&card).or_fail()?; // invalid JSON: the task fails
            ctx.check_cancelled()?; // the job has ended: the task stops
            println!("hello, {name}");
            Ok(Reply::none())
        }
    }
}
