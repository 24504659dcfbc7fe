"""A convex job without randomness that keeps a scheduler and an average of the parameters. At the
end every worker writes its learning rates and the average to a file."""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

POINTS, SIZE = 480, 24


def data():
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(POINTS, SIZE, generator=generator)
    return inputs, inputs @ torch.randn(SIZE, 3, generator=generator)


def main(worker):
    model = torch.nn.Linear(SIZE, 3)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.7)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    worker.keep(scheduler=scheduler, ema=ema)
    rates = []
    for inputs, wanted in worker.batches(data(), 20):
        rates.append(optimizer.param_groups[0]["lr"])
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(objective=loss)
        scheduler.step()
        ema.update_parameters(model)
    torch.save(
        {"resumed": worker.resumed, "rates": rates, "ema": ema.state_dict()},
        f"{worker.options['out']}-{worker.name}.pt",
    )
